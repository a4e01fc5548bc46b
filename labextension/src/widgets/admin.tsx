import React from 'react';

import { AdminEvents } from './adminevents';
import { AdminLeases } from './adminleases';
import { AdminQuotas } from './adminquotas';
import { useSnapshot, useView } from './host';
import { about } from '../text/said';
import { Skeleton } from './parts';
import { Facts } from './said';

/** Everybody's quotas, leases and events, for those who may. */
export function AdminView(): JSX.Element {
  const { trans } = useView();
  const { status } = useSnapshot();
  if (!status) {
    return <Skeleton lines={4} label={trans.__('Loading')} />;
  }
  if (!status.admin) {
    return (
      <p className="jp-gpushare-empty">
        {trans.__('Only an administrator of this node may see this.')}
      </p>
    );
  }
  return (
    <div className="jp-gpushare-admin">
      <section aria-label={trans.__('Quotas')}>
        <h4>{trans.__('Environments')}</h4>
        <AdminQuotas status={status} />
      </section>
      <section aria-label={trans.__('Leases of everybody')}>
        <h4>{trans.__('Leases of everybody')}</h4>
        <Facts says={about(status, 'host_memory')} />
        <AdminLeases status={status} />
      </section>
      <section aria-label={trans.__('Events')}>
        <h4>{trans.__('Events')}</h4>
        <AdminEvents />
      </section>
    </div>
  );
}
