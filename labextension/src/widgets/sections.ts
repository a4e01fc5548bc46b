import { caretDownIcon } from '@jupyterlab/ui-components';
import type { Message } from '@lumino/messaging';
import { type ISignal, Signal } from '@lumino/signaling';
import { Panel, PanelLayout, Widget } from '@lumino/widgets';

/** One section: a heading that opens and collapses it, and what it shows. */
export class Section extends Widget {
  constructor(options: {
    name: string;
    title: string;
    body: Widget;
    /** The content at the right end of the heading. */
    toolbar?: Widget | null;
  }) {
    super();
    this.addClass('jp-gpushare-section');
    this.node.dataset.section = options.name;
    this.name = options.name;
    this.title.label = options.title;

    const head = new Panel();
    head.addClass('jp-gpushare-section-head');
    head.addWidget(new Widget({ node: this._heading(options.title) }));
    if (options.toolbar) {
      head.addWidget(options.toolbar);
    }
    this._body = options.body;
    this._body.addClass('jp-gpushare-section-body');
    this._body.id = `jupyter-gpushare-section-${options.name}`;
    this._button.setAttribute('aria-controls', this._body.id);
    const layout = (this.layout = new PanelLayout());
    layout.addWidget(head);
    layout.addWidget(this._body);
    this.isOpen = true;
  }

  readonly name: string;

  /** The element that opens and collapses it. */
  get button(): HTMLButtonElement {
    return this._button;
  }

  get isOpen(): boolean {
    return !this._body.isHidden;
  }

  set isOpen(open: boolean) {
    this._body.setHidden(!open);
    this._button.setAttribute('aria-expanded', String(open));
  }

  /** A few words beside the title, also while it is collapsed. */
  set note(text: string) {
    this._note.textContent = text;
  }

  private _heading(title: string): HTMLElement {
    const heading = document.createElement('h3');
    this._button.type = 'button';
    this._button.className = 'jp-gpushare-section-title';
    const caret = caretDownIcon.element({ tag: 'span' });
    caret.setAttribute('aria-hidden', 'true');
    const label = document.createElement('span');
    label.textContent = title;
    this._note.className = 'jp-gpushare-section-note';
    this._button.append(caret, label, this._note);
    heading.append(this._button);
    return heading;
  }

  private readonly _button = document.createElement('button');
  private readonly _note = document.createElement('span');
  private readonly _body: Widget;
}

/**
 * Sections one below the other, each as tall as what it shows, in one thing that scrolls.
 *
 * (Lumino's accordion gives each open section an equal slice, however much or little is in it.)
 */
export class Sections extends Panel {
  constructor() {
    super();
    this.addClass('jp-gpushare-sections');
  }

  /** Emitted when a person has opened or collapsed a section. */
  get toggled(): ISignal<this, Section> {
    return this._toggled;
  }

  get all(): Section[] {
    return this.widgets.filter(
      (widget): widget is Section => widget instanceof Section
    );
  }

  handleEvent(event: Event): void {
    const all = this.all;
    const place = all.findIndex(({ button }) =>
      button.contains(event.target as Node)
    );
    if (place < 0) {
      return;
    }
    if (event instanceof KeyboardEvent) {
      const last = all.length - 1;
      const next = {
        ArrowDown: Math.min(place + 1, last),
        ArrowUp: Math.max(place - 1, 0),
        Home: 0,
        End: last
      }[event.key];
      if (next !== undefined) {
        event.preventDefault();
        all[next].button.focus();
      }
    } else {
      all[place].isOpen = !all[place].isOpen;
      this._toggled.emit(all[place]);
    }
  }

  protected onBeforeAttach(message: Message): void {
    super.onBeforeAttach(message);
    this.node.addEventListener('click', this);
    this.node.addEventListener('keydown', this);
  }

  protected onAfterDetach(message: Message): void {
    super.onAfterDetach(message);
    this.node.removeEventListener('click', this);
    this.node.removeEventListener('keydown', this);
  }

  private readonly _toggled = new Signal<this, Section>(this);
}
