import type { Lease, Status } from '../api/types';
import { countdownStep, secondsLeft, warnedLeases } from './parking';

/** Warnings about leases whose GPUs are about to be taken back. */
export type WarningNews =
  | {
      readonly what: 'begun' | 'step';
      readonly lease: Lease;
      readonly step: number;
    }
  /** It was kept, parked, used again, or has ended. */
  | { readonly what: 'over'; readonly id: string };

/** Compares each look at the warnings with the one before: tells when one begins and ends. */
export class ParkWarnings {
  /** `now` by the node's time, Unix seconds. */
  observe(status: Status | null, now: number): WarningNews[] {
    const news: WarningNews[] = [];
    const seen = new Map<string, string>();
    for (const lease of warnedLeases(status)) {
      const id = lease.id ?? '';
      const step = countdownStep(secondsLeft(lease, now) ?? 0);
      const state = `${lease.warning?.at ?? 0} ${step}`;
      const before = this._seen.get(id);
      if (before === undefined) {
        news.push({ what: 'begun', lease, step });
      } else if (before !== state) {
        news.push({ what: 'step', lease, step });
      }
      seen.set(id, state);
    }
    for (const id of this._seen.keys()) {
      if (!seen.has(id)) {
        news.push({ what: 'over', id });
      }
    }
    this._seen = seen;
    return news;
  }

  /** Whether there are any warnings now; only then a clock is needed. */
  get any(): boolean {
    return this._seen.size > 0;
  }

  private _seen = new Map<string, string>();
}
