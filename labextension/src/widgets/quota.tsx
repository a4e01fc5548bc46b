import React from 'react';

import { about } from '../text/said';
import { useSnapshot, useView } from './host';
import { Skeleton } from './parts';
import { Facts, SaidLines } from './said';

/** My quota: GPUs used of allowed, memory on each, what is left. */
export function QuotaView(): JSX.Element {
  const { trans } = useView();
  const { status } = useSnapshot();
  if (!status) {
    return <Skeleton lines={3} label={trans.__('Loading the quota')} />;
  }
  const { quota } = status;
  return (
    <div className="jp-gpushare-quota">
      {quota ? (
        <Facts says={quota.says ?? []} />
      ) : (
        <p className="jp-gpushare-empty">
          {trans.__('No quota is known for %1.', status.environment)}
        </p>
      )}
      <SaidLines says={about(status, 'you')} />
    </div>
  );
}
