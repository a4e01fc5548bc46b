import { Poll } from '@lumino/polling';
import React from 'react';

import { useSettings, useView } from './host';

/** Something that is asked for, not pushed. Old data stays when asking again fails. */
export interface IFetched<T> {
  readonly data: T | null;
  /** The error of the last fetch; `null` if it succeeded. */
  readonly error: string | null;
  /** Ask again now. */
  refresh(): void;
}

/**
 * Ask for something now, whenever the view is shown, and then each `every` seconds
 * (`settings.refresh`, where it is not given); never while the view is hidden. `fetch` must be a
 * stable function (`useCallback`).
 */
export function useFetched<T>(
  name: string,
  fetch: () => Promise<T>,
  every?: number
): IFetched<T> {
  const { host } = useView();
  const settings = useSettings();
  const interval = every ?? settings.refresh;
  const [state, setState] = React.useState<{
    data: T | null;
    error: string | null;
  }>({ data: null, error: null });
  const poll = React.useRef<Poll | null>(null);
  React.useEffect(() => {
    const polling = new Poll({
      name: `gpushare:${name}`,
      factory: async () => {
        try {
          const data = await fetch();
          if (!polling.isDisposed) {
            setState({ data, error: null });
          }
        } catch (error) {
          if (!polling.isDisposed) {
            const text = error instanceof Error ? error.message : String(error);
            setState(before => ({ data: before.data, error: text }));
          }
          throw error; // so that the poll slows down
        }
      },
      frequency: { interval: interval * 1000, backoff: true, max: 300_000 },
      standby: () => (host.isVisible ? 'when-hidden' : true)
    });
    const shown = (): void => void polling.refresh();
    host.shown.connect(shown);
    poll.current = polling;
    return () => {
      host.shown.disconnect(shown);
      polling.dispose();
      poll.current = null;
    };
  }, [name, fetch, interval, host]);
  const again = React.useCallback(() => void poll.current?.refresh(), []);
  return { ...state, refresh: again };
}
