/** Views that are large and seldom seen: their code is fetched when they are first shown. */
import React from 'react';

import { useView } from './host';
import { Skeleton } from './parts';

function onDemand(
  load: () => Promise<React.ComponentType>
): React.ComponentType {
  const View = React.lazy(async () => ({ default: await load() }));
  return function OnDemand(): JSX.Element {
    const { trans } = useView();
    return (
      <React.Suspense
        fallback={<Skeleton lines={4} label={trans.__('Loading')} />}
      >
        <View />
      </React.Suspense>
    );
  };
}

export const HistoryView = onDemand(
  async () => (await import('./history')).HistoryView
);
