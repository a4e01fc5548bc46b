import { nullTranslator } from '@jupyterlab/translation';
import { act, fireEvent, screen, waitFor } from '@testing-library/react';

import type { Readings } from '../api/types';
import {
  areaPath,
  freeOf,
  linePath,
  momentAt,
  most,
  pieces,
  plotOf,
  shareOf
} from '../model/plot';
import { momentText } from '../text/plot';
import { GpusView } from '../widgets/gpus';
import { aGpu, aLease, aStatus, GIB } from './support/builders';
import { show } from './support/views';

const trans = nullTranslator.load('');
const gpu = aGpu(0);

/** Four steps of 10 s until 2000; of the third nothing is known. */
function someReadings(given: Partial<Readings['gpus'][number]> = {}): Readings {
  return {
    step: 10,
    times: [1960, 1970, 1980, 1990],
    gpus: [
      {
        uuid: gpu.uuid,
        used: [0, 6 * GIB, null, 12 * GIB],
        utilisation: [0, 0.5, null, 1],
        mine: [0, 6 * GIB, null, 6 * GIB],
        others: [0, 0, null, 6 * GIB],
        rest: [0, 0, null, 2 * GIB],
        i_compute: [0, 1, null, 0],
        others_compute: [0, 0, null, 0.25],
        temperature: [null, null, null, null],
        power: [null, null, null, null],
        reserved: false,
        ...given
      }
    ]
  };
}

describe('the model of a plot', () => {
  const plot = plotOf(someReadings(), gpu, 40, 2000);

  it('has a moment a step, which ends where the next one begins', () => {
    expect([plot.from, plot.until, plot.capacity]).toEqual([
      1960,
      2000,
      24 * GIB
    ]);
    expect(plot.moments.map(({ at, until }) => [at, until])).toEqual([
      [1960, 1970],
      [1970, 1980],
      [1980, 1990],
      [1990, 2000]
    ]);
    expect(freeOf(plot.moments[3], plot.capacity)).toBe(10 * GIB);
    expect(freeOf(plot.moments[2], plot.capacity)).toBeNull();
  });

  it('knows nothing of a pause between two steps, nor of what is too old', () => {
    const readings = { ...someReadings(), times: [1000, 1900, 1910, 1990] };
    const { moments } = plotOf(readings, gpu, 100, 2000);
    expect(moments.map(({ at, until }) => [at, until])).toEqual([
      [1900, 1910],
      [1910, 1940],
      [1990, 2000]
    ]);
  });

  it('does without what an older node manager, or another GPU, does not tell', () => {
    const [{ uuid, used, utilisation }] = someReadings().gpus;
    const old = {
      ...someReadings(),
      gpus: [{ uuid, used, utilisation }]
    } as Readings;
    const { moments, reserved } = plotOf(old, gpu, 40, 2000);
    expect(moments[1].utilisation).toBe(0.5);
    expect([moments[1].mine, moments[1].power, reserved]).toEqual([
      null,
      null,
      false
    ]);
    expect(plotOf(someReadings(), aGpu(1), 40, 2000).moments).toEqual([]);
    expect(plotOf(null, gpu, 40, 2000).moments).toEqual([]);
  });

  it('draws areas upon each other, and leaves out what is unknown', () => {
    const mine = areaPath(
      plot,
      () => 0,
      one => one.mine,
      plot.capacity
    );
    expect(mine).toBe(
      'M0 100L250 100L250 75L500 75L500 100L250 100L250 100L0 100Z' +
        'M750 75L1000 75L1000 100L750 100Z'
    );
    const others = areaPath(
      plot,
      one => one.mine,
      one => (one.mine ?? 0) + (one.others ?? 0),
      plot.capacity
    );
    expect(others).toContain('M750 50L1000 50L1000 75L750 75Z');
  });

  it('draws a line with a stroke for each known piece, never beyond the top', () => {
    expect(linePath(plot, one => one.utilisation, 0.5)).toBe(
      'M0 100L250 0L500 0M750 0L1000 0'
    );
    expect(most(plot, one => one.utilisation)).toBe(1);
    expect(most(plot, one => one.power)).toBeNull();
  });

  it('draws who computed as pieces; equal neighbours are one', () => {
    expect(pieces(plot, one => one.iCompute)).toEqual([
      { x: 250, width: 250, share: 1 }
    ]);
    expect(pieces(plot, one => one.othersCompute)).toEqual([
      { x: 750, width: 250, share: 0.25 }
    ]);
    const always = plotOf(
      someReadings({ i_compute: [1, 1, 1, 1] }),
      gpu,
      40,
      2000
    );
    expect(pieces(always, one => one.iCompute)).toHaveLength(1);
  });

  it('finds the moment under the pointer, and its place', () => {
    expect([0, 0.3, 0.99, 1].map(share => momentAt(plot, share))).toEqual([
      0, 1, 3, 3
    ]);
    expect(shareOf(plot, plot.moments[1])).toBeCloseTo(0.375);
  });

  it('tells a moment in words, whom administrators may know too', () => {
    const told = (place: number, given = {}): string => {
      const other = plotOf(someReadings(given), gpu, 40, 2000);
      return momentText(other.moments[place], other, 'binary', trans);
    };
    expect(told(3)).toBe(
      'now: memory: mine 6 GiB, others 6 GiB, without a lease 2 GiB, free 10 GiB; computing: mine no, others 25 %; utilisation 100 %'
    );
    expect(told(2)).toContain('10 s ago'.replace('10', '20'));
    expect(told(2)).toContain('mine unknown');
    const people = [
      { environment: 'bob', memory: [0, 0, 0, GIB], computes: [0, 0, 0, 1] },
      { environment: 'eve', memory: [1, 0, 0, 0], computes: [0, 0, 0, 0] }
    ];
    const more = {
      temperature: [40, 41, 42, 61.4],
      power: [1, 2, 3, 285.5],
      environments: people
    };
    expect(told(3, more)).toContain('61 °C; 286 W; bob: 1 GiB, computes');
    expect(told(3, more)).not.toContain('eve');
    expect(momentText(null, plot, 'binary', trans)).toContain('Nothing');
  });
});

describe('the plots of a card', () => {
  const status = aStatus({ gpus: [gpu], leases: [aLease('a')] });
  const opened = async (given = {}) => {
    const shown = show(GpusView, status);
    shown.model.server.on('GET', 'readings', 200, someReadings(given));
    const button = screen.getByRole('button', { name: 'Plots of GPU 0' });
    expect(button.getAttribute('aria-expanded')).toBe('false');
    fireEvent.click(button);
    expect(button.getAttribute('aria-expanded')).toBe('true');
    const slider = await screen.findByRole('slider', {
      name: 'GPU 0 over the last 5 min'
    });
    await waitFor(() =>
      expect(slider.getAttribute('aria-valuetext')).toContain('mine 6 GiB')
    );
    return { ...shown, slider };
  };

  it('are asked for when they are opened, for the span that is chosen', async () => {
    const { model } = await opened();
    const asked = (): string[] =>
      model.server.asked
        .map(({ path }) => path)
        .filter(path => path.startsWith('readings'));
    expect(asked()).toEqual([`readings?gpu=${gpu.uuid}&since=300&step=0`]);
    const day = screen.getByRole('button', { name: '24 h' });
    expect(day.getAttribute('aria-pressed')).toBe('false');
    fireEvent.click(day);
    expect(day.getAttribute('aria-pressed')).toBe('true');
    await waitFor(() =>
      expect(asked().pop()).toBe(`readings?gpu=${gpu.uuid}&since=86400&step=0`)
    );
    await screen.findByRole('slider', { name: 'GPU 0 over the last 24 h' });
  });

  it('are read with the keyboard, a moment at a time', async () => {
    const { slider } = await opened();
    const at = (): string => slider.getAttribute('aria-valuetext') ?? '';
    expect(at()).toMatch(/^now: memory: mine 6 GiB, others 6 GiB/);
    fireEvent.keyDown(slider, { key: 'Home' });
    expect(at()).toMatch(/^40 s ago: memory: mine 0 B/);
    fireEvent.keyDown(slider, { key: 'ArrowRight' });
    expect(at()).toMatch(/^30 s ago: memory: mine 6 GiB, others 0 B/);
    expect(slider.getAttribute('aria-valuenow')).toBe('1');
    fireEvent.keyDown(slider, { key: 'End' });
    expect(at()).toMatch(/^now/);
    fireEvent.keyDown(slider, { key: 'Tab' });
    expect(at()).toMatch(/^now/);
  });

  it('show sensors only where there are any, and say what is only reserved', async () => {
    const { container, unmount } = await opened({ reserved: true });
    expect(container.textContent).toContain('Memory as reserved');
    expect(container.textContent).not.toContain('Temperature');
    unmount();
    const warm = await opened({
      temperature: [40, 50, null, 61],
      power: [90, 90, null, 285]
    });
    expect(warm.container.textContent).toContain('61 °C');
    expect(warm.container.textContent).toContain('285 W');
    expect(warm.container.textContent).not.toContain('Memory as reserved');
  });

  it('keep what they show when the newest cannot be read, and say so', async () => {
    const { model, slider, host } = await opened();
    model.server.down = true;
    act(() => host.shown.emit());
    await screen.findByText(/Not up to date/);
    expect(slider.getAttribute('aria-valuetext')).toContain('mine 6 GiB');
  });
});
