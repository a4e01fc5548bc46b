import { nullTranslator } from '@jupyterlab/translation';

import {
  formatBytes,
  formatCountdown,
  formatDuration,
  formatGpuHours,
  formatRange,
  formatShare
} from '../text/format';

const trans = nullTranslator.load('');

describe('formatBytes', () => {
  it.each([
    [0, '0 B'],
    [1, '1 B'],
    [1023, '1023 B'],
    [1024, '1 KiB'],
    [1536, '1.5 KiB'],
    [1024 ** 2 - 1, '1 MiB'],
    [8 * 1024 ** 3, '8 GiB'],
    [12.4 * 1024 ** 3, '12.4 GiB'],
    [140.9 * 1024 ** 3, '141 GiB'],
    [1023.97 * 1024 ** 3, '1 TiB'],
    [5000 * 1024 ** 4, '5000 TiB'],
    [-2 * 1024 ** 3, '−2 GiB']
  ])('writes %d as %s', (bytes, text) => {
    expect(formatBytes(bytes)).toBe(text);
  });

  it('writes powers of 1000 where asked', () => {
    expect(formatBytes(8e9, 'decimal')).toBe('8 GB');
    expect(formatBytes(999_960, 'decimal')).toBe('1 MB');
  });
});

describe('formatDuration', () => {
  it.each([
    [-5, '0 s'],
    [59.9, '59 s'],
    [60, '1 min'],
    [1799, '30 min'],
    [3599, '1 h'],
    [7799, '2 h 10 min'],
    [3600, '1 h'],
    [7500, '2 h 5 min'],
    [86400, '1 d'],
    [100000, '1 d 4 h']
  ])('writes %d s as %s', (seconds, text) => {
    expect(formatDuration(seconds, trans)).toBe(text);
  });
});

it.each([
  [59, '59 s'],
  [60, '1 min 00 s'],
  [125, '2 min 05 s'],
  [7200, '2 h']
])('counts %d s down as %s', (seconds, text) => {
  expect(formatCountdown(seconds, trans)).toBe(text);
});

it.each([
  [605, 1790, '10 to 30 min'],
  [1075, 1075, '20 min'],
  [0, 12, '10 s'],
  [40, 700, '40 s to 10 min'],
  [3600, 5400, '1 h to 1 h 30 min'],
  [18000, 200000, '5 h to 2 d 12 h']
])('writes about %d to %d s as %s', (low, high, text) => {
  expect(formatRange(low, high, trans)).toBe(text);
});

it('writes GPU-hours with the figures that say something', () => {
  expect([0, 10, 3600, 36000 * 1.234, 3600 * 1234].map(formatGpuHours)).toEqual(
    ['0', '< 0.01', '1', '12.3', '1234']
  );
});

it('does not make up a share', () => {
  expect(formatShare(null)).toBe('?');
  expect(formatShare(0.374)).toBe('37 %');
});
