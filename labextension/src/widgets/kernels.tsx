import { Clipboard } from '@jupyterlab/apputils';
import { Button, closeIcon, copyIcon } from '@jupyterlab/ui-components';
import React from 'react';

import type { ILackingPython, LackingKernels } from '../model/kernels';
import { useView } from './host';
import { IconButton } from './parts';

/** What `look` finds, anew after each change; `null`: nobody looks at kernels. */
export function useKernels<T>(
  kernels: LackingKernels | null,
  look: () => T
): T {
  const subscribe = React.useCallback(
    (changed: () => void) => {
      kernels?.changed.connect(changed);
      return () => kernels?.changed.disconnect(changed);
    },
    [kernels]
  );
  return React.useSyncExternalStore(subscribe, look);
}

/** A notice of kernels that get no GPU, with the command that mends it; empty if there are none. */
export function KernelsView(props: { kernels: LackingKernels }): JSX.Element {
  const { kernels } = props;
  const { trans } = useView();
  const shown = useKernels(kernels, () => kernels.shown);
  const elsewhere = useKernels(kernels, () => kernels.elsewhere);
  const hosts = [...new Set(elsewhere.map(({ host }) => host))].sort();
  const running = shown.filter(one => one.running);
  const others = shown.filter(one => !one.running);
  return (
    <div role="status" aria-live="polite" className="jp-gpushare-banner-region">
      {hosts.map(host => (
        <div key={host} className="jp-gpushare-banner" data-kind="elsewhere">
          {trans._n(
            'A kernel of yours runs on host %2; `%gpushare status` in it shows its GPUs. This panel shows those of the host where the Jupyter server runs.',
            '%1 kernels of yours run on host %2; `%gpushare status` in them shows their GPUs. This panel shows those of the host where the Jupyter server runs.',
            elsewhere.filter(one => one.host === host).length,
            host
          )}
        </div>
      ))}
      {shown.length > 0 && (
        <div className="jp-gpushare-banner" data-kind="kernels">
          <IconButton
            icon={closeIcon}
            label={trans.__('Dismiss')}
            className="jp-gpushare-dismiss"
            onClick={() => kernels.dismiss()}
          />
          {running.map(one => (
            <Lacking key={one.python} one={one} />
          ))}
          {others.length > 0 && (
            <details>
              <summary>
                {trans._n(
                  'A kernel that you can start gets no GPU: %2',
                  '%1 kernels that you can start get no GPU: %2',
                  others.length,
                  others.map(titles).join(', ')
                )}
              </summary>
              {others.map(one => (
                <Lacking key={one.python} one={one} />
              ))}
            </details>
          )}
          <Button
            type="button"
            className="jp-mod-styled"
            onClick={() => void kernels.refresh()}
          >
            {trans.__('Check again')}
          </Button>
        </div>
      )}
    </div>
  );
}

function titles(one: ILackingPython): string {
  return one.titles.join(', ');
}

function Lacking(props: { one: ILackingPython }): JSX.Element {
  const { trans } = useView();
  const { one } = props;
  const [copied, setCopied] = React.useState(false);
  return (
    <div className="jp-gpushare-lacking">
      <strong>{trans.__('%1: no GPU', titles(one))}</strong>
      <p>
        {one.running
          ? trans.__(
              'Its Python lacks jupyter-gpushare-client. Run this in a terminal, then restart the kernel:'
            )
          : trans.__(
              'Its Python lacks jupyter-gpushare-client. Run this in a terminal:'
            )}
      </p>
      <div className="jp-gpushare-command">
        <code>{one.fix}</code>
        <IconButton
          icon={copyIcon}
          label={copied ? trans.__('Copied') : trans.__('Copy the command')}
          onClick={() => {
            Clipboard.copyToSystem(one.fix);
            setCopied(true);
          }}
        />
      </div>
    </div>
  );
}
