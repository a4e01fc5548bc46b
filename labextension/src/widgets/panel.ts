import type { ITranslator } from '@jupyterlab/translation';
import {
  CommandToolbarButton,
  PanelWithToolbar,
  SidePanel
} from '@jupyterlab/ui-components';
import { type ISignal, Signal } from '@lumino/signaling';
import type { Message } from '@lumino/messaging';
import type { AccordionPanel } from '@lumino/widgets';
import type React from 'react';

import { CommandIDs } from '../commands';
import { gpuIcon } from '../icons';
import { Connection } from '../model/snapshot';
import { BannerView } from './banner';
import { GpusView } from './gpus';
import { type IViewServices, ViewWidget } from './host';
import { AdminView, HistoryView } from './lazy';
import { LeasesView } from './leases';
import { QueueView } from './queue';
import { QuotaView } from './quota';

interface ISection {
  readonly name: string;
  readonly title: string;
  readonly View: React.ComponentType;
  /** The command of a button in the section's title. */
  readonly command?: string;
  readonly collapsed?: boolean;
}

/** How the height is shared among the sections that are open. */
const PARTS: Record<string, number> = {
  quota: 26,
  leases: 22,
  queue: 14,
  gpus: 38,
  history: 30,
  admin: 30
};

/** Which sections were opened or collapsed by hand, by name; remembered over reloads. */
export type Expanded = Readonly<Record<string, boolean>>;

/** The sidebar: quota, leases, queue, GPUs, history, and the administration for who may. */
export class GpuSharePanel extends SidePanel {
  constructor(
    private readonly _services: IViewServices,
    translator: ITranslator
  ) {
    super({ translator });
    const { trans, model, commands } = _services;
    this.id = 'jupyter-gpushare-panel';
    this.addClass('jp-gpushare-panel');
    this.title.icon = gpuIcon;
    this.title.caption = trans.__('GPUs');
    this.node.setAttribute('role', 'region');
    this.node.setAttribute('aria-label', trans.__('GPUs'));
    this.header.addWidget(new ViewWidget(_services, BannerView));
    this.toolbar.addItem(
      'refresh',
      new CommandToolbarButton({ commands, id: CommandIDs.refresh, label: '' })
    );
    const sections: ISection[] = [
      { name: 'quota', title: trans.__('My quota'), View: QuotaView },
      { name: 'leases', title: trans.__('My leases'), View: LeasesView },
      { name: 'queue', title: trans.__('Queue'), View: QueueView },
      { name: 'gpus', title: trans.__('GPUs of this node'), View: GpusView },
      {
        name: 'history',
        title: trans.__('History'),
        View: HistoryView,
        command: CommandIDs.showHistory,
        collapsed: true
      }
    ];
    for (const section of sections) {
      this._add(section);
    }
    this._sections.expansionToggled.connect(this._toggled, this);
    model.changed.connect(this._changed, this);
    this._changed();
  }

  /** Emitted when a section was opened or collapsed, with all that are remembered. */
  get expandedChanged(): ISignal<this, Expanded> {
    return this._expandedChanged;
  }

  /** Open and collapse the sections as they were; those that are not named stay as they are. */
  restoreExpanded(expanded: Expanded): void {
    this._expanded = { ...expanded, ...this._expanded };
    this.widgets.forEach((section, index) => {
      const wanted = this._expanded[section.node.dataset.section ?? ''];
      if (wanted === true) {
        this._sections.expand(index);
      } else if (wanted === false) {
        this._sections.collapse(index);
      }
    });
  }

  dispose(): void {
    if (!this.isDisposed) {
      this._services.model.changed.disconnect(this._changed, this);
      super.dispose();
    }
  }

  protected onAfterAttach(message: Message): void {
    super.onAfterAttach(message);
    // Sizes hold for the sections there are, once they have a height.
    this._share();
  }

  /** Give each open section its part of the height. */
  private _share(): void {
    this._sections.setRelativeSizes(
      this.widgets.map(
        section => PARTS[section.node.dataset.section ?? ''] ?? 1
      )
    );
  }

  private get _sections(): AccordionPanel {
    return this.content as AccordionPanel;
  }

  private _add(section: ISection): PanelWithToolbar {
    const { trans, commands } = this._services;
    const panel = new PanelWithToolbar();
    panel.addClass('jp-gpushare-section');
    panel.node.dataset.section = section.name;
    // It scrolls; the arrow keys must be able to do that where nothing in it takes the focus.
    panel.node.tabIndex = 0;
    panel.title.label = section.title;
    if (section.command && commands.hasCommand(section.command)) {
      panel.toolbar.addItem(
        'open',
        new CommandToolbarButton({ commands, id: section.command, label: '' })
      );
    }
    panel.toolbar.node.setAttribute(
      'aria-label',
      trans.__('%1: actions', section.title)
    );
    panel.addWidget(new ViewWidget(this._services, section.View));
    this.addWidget(panel);
    if (!(this._expanded[section.name] ?? !section.collapsed)) {
      this._sections.collapse(this.widgets.length - 1);
    }
    return panel;
  }

  private _toggled(sections: AccordionPanel, index: number): void {
    const section = sections.widgets[index];
    const name = section.node.dataset.section;
    if (name) {
      this._expanded = { ...this._expanded, [name]: !section.isHidden };
      this._expandedChanged.emit(this._expanded);
    }
  }

  private _changed(): void {
    const { snapshot } = this._services.model;
    // Nothing is known: only the banner says why. Six empty sections would say nothing.
    this.content.setHidden(snapshot.connection === Connection.Failed);
    const admin = snapshot.status?.admin ?? false;
    if (admin && !this._admin) {
      this._admin = this._add({
        name: 'admin',
        title: this._services.trans.__('Administration'),
        View: AdminView,
        command: CommandIDs.showAdmin,
        collapsed: true
      });
      this._share();
    } else if (!admin && snapshot.status && this._admin) {
      this._admin.dispose();
      this._admin = null;
    }
  }

  private _admin: PanelWithToolbar | null = null;
  private _expanded: Expanded = {};
  private readonly _expandedChanged = new Signal<this, Expanded>(this);
}
