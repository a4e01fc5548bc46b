import type { Status } from '../api/types';
import type { NotificationKind } from './settings';

/** The schema of the server's lease events (jupyter_gpushare/server/events). */
export const LEASE_EVENTS =
  'https://events.jupyter.org/jupyter_gpushare/lease/v1';

/** One event of the server's bus about a lease of mine. */
export interface ILeaseEvent {
  readonly schema_id: string;
  readonly action: string;
  readonly lease?: string;
  /** The task's name. */
  readonly task?: string;
  readonly gpus?: readonly string[];
  /** A sentence of the node manager's. */
  readonly message?: string;
  /** Why it ended: a word for programs. */
  readonly reason?: string;
  /** The administrator's own words. */
  readonly detail?: string;
}

export function isLeaseEvent(event: {
  readonly schema_id: string;
}): event is ILeaseEvent {
  return (
    event.schema_id === LEASE_EVENTS &&
    typeof (event as Partial<ILeaseEvent>).action === 'string'
  );
}

/** The notifications that a lease event can cause. */
export type LeaseNewsKind = Exclude<NotificationKind, 'parking' | 'budget'>;

/** Decides which events are news: a grant is, where it was waited for. */
export class LeaseNews {
  /** Remember the requests that wait now: a page that was just loaded has not seen them begin. */
  observe(status: Status | null): void {
    for (const waiting of status?.queue ?? []) {
      if (waiting.mine && waiting.lease) {
        this._waited.add(waiting.lease);
      }
    }
  }

  /** Return what to tell, `null` for what is no news. */
  kindOf(event: ILeaseEvent): LeaseNewsKind | null {
    const lease = event.lease ?? '';
    switch (event.action) {
      case 'queued':
        this._waited.add(lease);
        return null;
      case 'granted':
        return this._waited.delete(lease) ? 'granted' : null;
      case 'ended':
        this._waited.delete(lease);
        if (event.reason === 'revoked') {
          return 'revoked';
        }
        return event.reason !== undefined && EXPIRED.has(event.reason)
          ? 'expired'
          : null;
      default:
        return null;
    }
  }

  private readonly _waited = new Set<string>();
}

/** Ends that came neither from the user nor from an administrator. */
const EXPIRED = new Set(['heartbeat_lost', 'refused', 'rebooted']);

/** Tells when a budget of GPU-hours is nearly spent, and when it is: each once while it lasts. */
export class BudgetNews {
  /** Whether there is something to tell. */
  observe(status: Status | null): boolean {
    if (status === null) {
      return false;
    }
    const level = status.quota?.budget?.level ?? 'ok';
    const before = this._level;
    this._level = level;
    return level !== before && level !== 'ok' && before !== 'spent';
  }

  private _level: 'ok' | 'warned' | 'spent' = 'ok';
}
