import type { ITranslator } from '@jupyterlab/translation';
import {
  CommandToolbarButton,
  SidePanel,
  Toolbar
} from '@jupyterlab/ui-components';
import { type ISignal, Signal } from '@lumino/signaling';
import type { Widget } from '@lumino/widgets';
import React from 'react';

import { CommandIDs } from '../commands';
import { gpuIcon } from '../icons';
import type { LackingKernels } from '../model/kernels';
import { Connection } from '../model/snapshot';
import { BannerView } from './banner';
import { GpusView } from './gpus';
import { type IViewServices, ViewWidget } from './host';
import { KernelsView } from './kernels';
import { HistoryView } from './lazy';
import { LeasesView } from './leases';
import { QueueView } from './queue';
import { QuotaView } from './quota';
import { Section, Sections } from './sections';
import { ServersView } from './servers';

interface ISection {
  readonly name: string;
  readonly title: string;
  readonly View: React.ComponentType;
  /** The command of a button in the section's title. */
  readonly command?: string;
  readonly collapsed?: boolean;
}

/** Which sections were opened or collapsed by hand, by name; remembered over reloads. */
export type Expanded = Readonly<Record<string, boolean>>;

/** The sidebar: quota, leases, queue, GPUs, servers and history. */
export class GpuSharePanel extends SidePanel {
  constructor(
    private readonly _services: IViewServices,
    kernels: LackingKernels,
    translator: ITranslator
  ) {
    super({ translator, content: new Sections() });
    const { trans, model } = _services;
    this.id = 'jupyter-gpushare-panel';
    this.addClass('jp-gpushare-panel');
    this.title.icon = gpuIcon;
    this.title.caption = trans.__('GPUs');
    this.node.setAttribute('role', 'region');
    this.node.setAttribute('aria-label', trans.__('GPUs'));
    this.header.addWidget(new ViewWidget(_services, BannerView));
    this.header.addWidget(
      new ViewWidget(_services, () =>
        React.createElement(KernelsView, { kernels })
      )
    );
    this._add({
      name: 'quota',
      title: trans.__('My quota'),
      View: QuotaView,
      command: CommandIDs.refresh
    });
    this._add({
      name: 'leases',
      title: trans.__('My leases'),
      View: LeasesView,
      command: CommandIDs.request
    });
    this._queue = this._add({
      name: 'queue',
      title: trans.__('Queue'),
      View: QueueView
    });
    this._add({
      name: 'gpus',
      title: trans.__('GPUs of this node'),
      View: GpusView,
      command: this._ifKnown(CommandIDs.showAdmin)
    });
    this._add({
      name: 'servers',
      title: trans.__('Servers'),
      View: ServersView,
      collapsed: true
    });
    this._add({
      name: 'history',
      title: trans.__('History'),
      View: HistoryView,
      command: this._ifKnown(CommandIDs.showHistory),
      collapsed: true
    });
    this._sections.toggled.connect(this._toggled, this);
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
    for (const section of this._sections.all) {
      section.isOpen = this._expanded[section.name] ?? section.isOpen;
    }
  }

  dispose(): void {
    if (!this.isDisposed) {
      this._services.model.changed.disconnect(this._changed, this);
      super.dispose();
    }
  }

  private get _sections(): Sections {
    return this.content as Sections;
  }

  /** Not every application has pages in its main area. */
  private _ifKnown(command: string): string | undefined {
    return this._services.commands.hasCommand(command) ? command : undefined;
  }

  private _add(options: ISection): Section {
    const { trans, commands } = this._services;
    let toolbar: Toolbar<Widget> | null = null;
    if (options.command) {
      toolbar = new Toolbar();
      toolbar.addClass('jp-gpushare-section-toolbar');
      toolbar.node.setAttribute(
        'aria-label',
        trans.__('%1: actions', options.title)
      );
      toolbar.addItem(
        'command',
        new CommandToolbarButton({ commands, id: options.command, label: '' })
      );
    }
    const { name, title, View } = options;
    const body = new ViewWidget(this._services, View);
    const section = new Section({ name, title, body, toolbar });
    section.isOpen = this._expanded[name] ?? !options.collapsed;
    this.content.addWidget(section);
    return section;
  }

  private _toggled(_: Sections, section: Section): void {
    this._expanded = { ...this._expanded, [section.name]: section.isOpen };
    this._expandedChanged.emit(this._expanded);
  }

  private _changed(): void {
    const { snapshot } = this._services.model;
    // Nothing is known: only the banner says why. Six empty sections would say nothing.
    this.content.setHidden(snapshot.connection === Connection.Failed);
    const waiting = snapshot.status?.queue.length;
    this._queue.note = waiting
      ? this._services.trans.__('%1 waiting', waiting)
      : '';
  }

  private readonly _queue: Section;
  private _expanded: Expanded = {};
  private readonly _expandedChanged = new Signal<this, Expanded>(this);
}
