import { type ISignal, Signal } from '@lumino/signaling';

import type { GpuShareApi } from '../api/rest';
import type { KernelElsewhere, LackingKernel } from '../api/types';

/** A Python without the import hook, and the kernels that run it. */
export interface ILackingPython {
  readonly python: string;
  /** The kernels' names for people. */
  readonly titles: readonly string[];
  /** The command that mends it. */
  readonly fix: string;
  /** One of these kernels runs now. */
  readonly running: boolean;
}

/** One entry for each Python, those of running kernels first. Pure. */
export function byPython(
  lacking: readonly LackingKernel[],
  running: ReadonlySet<string>
): ILackingPython[] {
  const pythons = [...new Set(lacking.map(kernel => kernel.python))];
  return pythons
    .map(python => {
      const kernels = lacking.filter(kernel => kernel.python === python);
      return {
        python,
        titles: kernels.map(kernel => kernel.title),
        fix: kernels[0].fix,
        running: kernels.some(kernel => running.has(kernel.name))
      };
    })
    .sort((one, other) => Number(other.running) - Number(one.running));
}

/** The kernels that get no GPU because their Python lacks the light client. */
export class LackingKernels {
  /** `running`: the names of the kernelspecs of which a kernel runs now. */
  constructor(
    private readonly _api: GpuShareApi,
    private readonly _running: () => Iterable<string>
  ) {}

  /** Those to tell of; another list after each change. */
  get shown(): readonly ILackingPython[] {
    return this._shown;
  }

  /** The kernels whose host the pool chose; another list after each change. */
  get elsewhere(): readonly KernelElsewhere[] {
    return this._elsewhere;
  }

  /** Emitted after each change of `shown` or `elsewhere`. */
  get changed(): ISignal<this, void> {
    return this._changed;
  }

  /** The Pythons that a person does not want to hear of. */
  get dismissed(): readonly string[] {
    return [...this._dismissed];
  }

  /** Emitted when a person has dismissed what is shown. */
  get dismissedChanged(): ISignal<this, void> {
    return this._dismissedChanged;
  }

  /** Ask the server anew. */
  async refresh(): Promise<void> {
    const turn = ++this._turn;
    const names = new Set(this._running());
    try {
      const { lacking, elsewhere = [] } = await this._api.kernels();
      if (turn !== this._turn) {
        return; // asked again meanwhile
      }
      this._lacking = lacking;
      if (JSON.stringify(elsewhere) !== JSON.stringify(this._elsewhere)) {
        this._elsewhere = elsewhere;
        this._changed.emit();
      }
      this._asked = names;
    } catch {
      return; // the banner says it where the server does not answer
    }
    this._show();
  }

  /** Ask anew if a kernel of another kernelspec has started; else only see which run. */
  observe(): void {
    const names = [...this._running()];
    const moves = this._elsewhere.length > 0; // they may be on another host now
    if (moves || names.some(name => !this._asked.has(name))) {
      void this.refresh();
    } else {
      this._show();
    }
  }

  /** Tell no more of those that are shown. */
  dismiss(): void {
    this._shown.forEach(({ python }) => this._dismissed.add(python));
    this._show();
    this._dismissedChanged.emit();
  }

  /** Dismiss what was dismissed in an earlier page. */
  restore(dismissed: readonly string[]): void {
    dismissed.forEach(python => this._dismissed.add(python));
    this._show();
  }

  private _show(): void {
    const shown = byPython(this._lacking, new Set(this._running())).filter(
      ({ python }) => !this._dismissed.has(python)
    );
    if (JSON.stringify(shown) !== JSON.stringify(this._shown)) {
      this._shown = shown;
      this._changed.emit();
    }
  }

  private _turn = 0;
  private _elsewhere: readonly KernelElsewhere[] = [];
  private _lacking: readonly LackingKernel[] = [];
  private _asked: ReadonlySet<string> = new Set();
  private _shown: readonly ILackingPython[] = [];
  private readonly _dismissed = new Set<string>();
  private readonly _changed = new Signal<this, void>(this);
  private readonly _dismissedChanged = new Signal<this, void>(this);
}
