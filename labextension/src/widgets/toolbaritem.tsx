import type { NotebookPanel } from '@jupyterlab/notebook';
import type { TranslationBundle } from '@jupyterlab/translation';
import type { Message } from '@lumino/messaging';
import React from 'react';

import type { Lease, Status, Waiting } from '../api/types';
import { gpuIcon, stateIcons } from '../icons';
import { leaseOfKernel } from '../model/derive';
import { Connection } from '../model/snapshot';
import { entryOf, waitsForBudget } from '../model/waiting';
import { turnHint } from '../text/turns';
import { expectationText, sharedText } from '../text/waiting';
import { leaseSummary, stateHint } from '../text/words';
import { Countdown, KeepButton } from './parking';
import { leaseMenu } from './leasemenu';
import {
  type IViewServices,
  useSettings,
  useSnapshot,
  useView,
  ViewWidget
} from './host';

/** Pixels that the toolbar counts for the item: its picture alone (style/base.css). */
const COUNTED = 28;

/**
 * The toolbar's item: what the open notebook holds or waits for, and what can be done.
 *
 * A toolbar measures its items once, and moves into its menu what has no room. So this one is as
 * wide as its picture to the toolbar, and has as many words as there is room left for: it gets
 * smaller before it could go.
 */
export class LeaseToolbarItem extends ViewWidget {
  constructor(services: IViewServices, notebook: NotebookPanel) {
    super(services, () => <ToolbarItemView notebook={notebook} />);
    this.addClass('jp-gpushare-toolbar-item');
  }

  protected onAfterAttach(message: Message): void {
    super.onAfterAttach(message);
    void this.renderPromise?.then(() => this._watch());
  }

  protected onBeforeDetach(message: Message): void {
    this._sizes.disconnect();
    super.onBeforeDetach(message);
  }

  /** Look at whatever may change how much room there is, or is needed. */
  private _watch(): void {
    const bar = this.node.parentElement;
    if (!this.isAttached || !bar) {
      return;
    }
    const { button, words } = this._parts();
    for (const node of [bar, bar.querySelector(SPACER), button, words]) {
      if (node) {
        this._sizes.observe(node);
      }
    }
  }

  private _fit(): void {
    const bar = this.node.parentElement;
    const { button, text, words } = this._parts();
    if (!bar || !button || !text || !words) {
      return;
    }
    const inMenu = bar.matches('.jp-Toolbar-responsive-popup');
    const compact = this.node.dataset.compact === 'true';
    const width = (nodes: Iterable<Element>): number =>
      [...nodes].reduce((sum, { clientWidth }) => sum + clientWidth, 0);
    const least = width(this.node.children) - (compact ? 0 : text.offsetWidth);
    const others = width(
      [...bar.children].filter(
        child => child !== this.node && !child.matches(SPACER)
      )
    );
    const left = bar.clientWidth - PADDING - others - least;
    // What counts down is seen, whatever else has to go for that while.
    const mustShow = inMenu || button.dataset.warned === 'true';
    const given = mustShow
      ? words.offsetWidth
      : Math.min(words.offsetWidth, left);
    const isShown = given >= Math.min(LEAST_WORDS, words.offsetWidth);
    this.node.dataset.compact = String(!isShown);
    text.style.maxWidth = `${given}px`;
    this.node.style.marginRight = inMenu
      ? ''
      : `${least + (isShown ? given : 0) - COUNTED}px`;
  }

  private _parts(): Record<'button' | 'text' | 'words', HTMLElement | null> {
    const part = (name: string): HTMLElement | null =>
      this.node.querySelector(`.jp-gpushare-toolbar-${name}`);
    return { button: part('button'), text: part('text'), words: part('words') };
  }

  private readonly _sizes = new ResizeObserver(() => this._fit());
}

const SPACER = '.jp-Toolbar-spacer';
/** Pixels of a toolbar that nothing stands in. */
const PADDING = 8;
/** Pixels below which a part of the words says nothing. */
const LEAST_WORDS = 60;

function ToolbarItemView(props: { notebook: NotebookPanel }): JSX.Element {
  const { trans, commands, model } = useView();
  const { status, connection } = useSnapshot();
  const { units } = useSettings();
  const kernel = useKernelId(props.notebook);
  const lease = leaseOfKernel(status, kernel);
  const stale = connection === Connection.Stale;
  // By a clock that nobody sets right any more nothing is counted down.
  const warned = lease?.warning && !stale ? lease : null;
  const Icon = lease ? stateIcons[lease.state] : gpuIcon;
  const entry = entryOf(lease, status);
  const text = status
    ? leaseSummary(lease, units, trans, waitsForBudget(entry))
    : trans.__('GPU: not known');
  const hint = hintText(lease, entry, status, trans);
  const label = trans.__('GPU of this notebook: %1', text);
  return (
    <>
      <button
        type="button"
        className="jp-gpushare-toolbar-button"
        data-state={lease?.state ?? 'none'}
        data-warned={warned !== null}
        data-connection={connection}
        title={`${stale ? trans.__('%1 (not up to date)', text) : text}\n${hint}`}
        aria-label={stale ? trans.__('%1 (not up to date)', label) : label}
        aria-haspopup="menu"
        onClick={event => {
          const box = event.currentTarget.getBoundingClientRect();
          const menu = leaseMenu(
            commands,
            kernel,
            lease,
            status?.node ?? null,
            model.now()
          );
          menu.open(box.left, box.bottom);
        }}
      >
        <Icon.react tag="span" aria-hidden="true" />
        <span className="jp-gpushare-toolbar-text">
          <span className="jp-gpushare-toolbar-words">
            {warned ? <Countdown lease={warned} /> : text}
            {stale && ' ?'}
          </span>
        </span>
      </button>
      {warned && (
        <KeepButton
          lease={warned}
          label={trans.__('Keep the GPU of this notebook')}
        />
      )}
    </>
  );
}

/** What is behind the words: why it waits and about how long, with whom it shares. */
function hintText(
  lease: Lease | null,
  entry: Waiting | null,
  status: Status | null,
  trans: TranslationBundle
): string {
  if (!status) {
    return trans.__('The panel says why.');
  }
  if (!lease) {
    return trans.__('This notebook holds no GPU. Importing torch gets one.');
  }
  if (lease.turn === 'waits') {
    return turnHint(status.node, trans);
  }
  const more = entry
    ? [entry.message ?? '', expectationText(entry, trans)]
    : [sharedText(lease, status, trans)];
  return [stateHint(lease.state, trans), ...more]
    .filter(text => text)
    .join(' ');
}

/** The id of a notebook's kernel, whichever it has now. */
function useKernelId(notebook: NotebookPanel): string | null {
  const context = notebook.sessionContext;
  const subscribe = React.useCallback(
    (changed: () => void) => {
      context.kernelChanged.connect(changed);
      return () => context.kernelChanged.disconnect(changed);
    },
    [context]
  );
  return React.useSyncExternalStore(
    subscribe,
    () => context.session?.kernel?.id ?? null
  );
}
