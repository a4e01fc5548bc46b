import React from 'react';

import { about, besides } from '../text/said';
import { useSnapshot, useView } from './host';
import { Skeleton } from './parts';
import { Details, Facts, SaidLines, Words } from './said';

/** What is seldom asked, and has no room where there are many sections. */
const FOLDED = ['more', 'left', 'weight', 'source'];

/** My quota: GPUs used of allowed, memory on each, what is left. */
export function QuotaView(): JSX.Element {
  const { trans } = useView();
  const { status } = useSnapshot();
  if (!status) {
    return <Skeleton lines={3} label={trans.__('Loading the quota')} />;
  }
  const { quota } = status;
  const limits = about(quota, 'quota').map(said => (
    <React.Fragment key={said.about}>
      {said.label}: <Words says={[said]} />
    </React.Fragment>
  ));
  return (
    <div className="jp-gpushare-quota">
      {quota ? (
        <Facts says={besides(quota, 'quota', ...FOLDED)} />
      ) : (
        <p className="jp-gpushare-empty">
          {trans.__('No quota is known for %1.', status.environment)}
        </p>
      )}
      <Details title={limits.length ? limits : trans.__('Details')}>
        <SaidLines says={about(status, 'you')} />
        <Facts says={about(quota, ...FOLDED)} />
      </Details>
    </div>
  );
}
