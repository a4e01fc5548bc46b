import { nullTranslator } from '@jupyterlab/translation';

import {
  BudgetNews,
  type ILeaseEvent,
  isLeaseEvent,
  LEASE_EVENTS,
  LeaseNews
} from '../model/news';
import { newsText } from '../text/news';
import { aQuota, aStatus, aWaiting } from './support/builders';

const event = (
  action: string,
  more: Partial<ILeaseEvent> = {}
): ILeaseEvent => ({
  schema_id: LEASE_EVENTS,
  action,
  lease: 'l1',
  task: 'train.ipynb',
  ...more
});

describe('news', () => {
  it('of a grant is only what was waited for', () => {
    const news = new LeaseNews();
    expect(news.kindOf(event('granted'))).toBeNull();
    expect(news.kindOf(event('queued'))).toBeNull();
    expect(news.kindOf(event('granted'))).toBe('granted');
    expect(news.kindOf(event('granted'))).toBeNull();
  });

  it('knows who waited before the page was loaded', () => {
    const news = new LeaseNews();
    news.observe(
      aStatus({
        queue: [aWaiting(1, { mine: true, lease: 'l1' }), aWaiting(2)]
      })
    );
    expect(news.kindOf(event('granted'))).toBe('granted');
  });

  it.each([
    ['revoked', 'revoked'],
    ['heartbeat_lost', 'expired'],
    ['rebooted', 'expired'],
    ['released', null],
    ['cancelled', null],
    ['kernel_ended', null],
    ['lost', null],
    [undefined, null]
  ])('of an end by %s is %s', (reason, kind) => {
    expect(new LeaseNews().kindOf(event('ended', { reason }))).toBe(kind);
  });

  it("is only of gpushare's events", () => {
    expect(isLeaseEvent(event('granted'))).toBe(true);
    expect(
      isLeaseEvent({ schema_id: 'https://events.jupyter.org/other' })
    ).toBe(false);
  });
});

it("tells an administrator's reason", () => {
  const trans = nullTranslator.load('');
  expect(
    newsText('revoked', event('ended', { detail: 'maintenance at 6' }), trans)
  ).toBe('An administrator took the GPU of train.ipynb away: maintenance at 6');
  expect(
    newsText('granted', event('granted', { gpus: ['a', 'b'] }), trans)
  ).toBe('train.ipynb got 2 GPUs.');
});

describe('a budget', () => {
  const at = (level: 'ok' | 'warned' | 'spent', spent = 0.08) => ({
    hours: 0.1,
    spent,
    window: 604800,
    level
  });

  it('is news once at 80 %, once when it is spent, and again after it was raised', () => {
    const news = new BudgetNews();
    const look = (level: 'ok' | 'warned' | 'spent'): boolean =>
      news.observe(aStatus({ quota: aQuota({ budget: at(level) }) }));
    expect(news.observe(null)).toBe(false);
    const levels = [
      ['ok', false],
      ['warned', true],
      ['warned', false],
      ['spent', true],
      ['spent', false],
      ['warned', false],
      ['ok', false],
      ['warned', true]
    ] as const;
    for (const [level, isNews] of levels) {
      expect(look(level)).toBe(isNews);
      expect(news.observe(null)).toBe(false);
    }
  });
});
