import { endWaits } from '../plugins/waits';

interface IOutput {
  output_type?: string;
  metadata: { gpushare?: unknown };
}

/** A cell's outputs, as the notebook's model has them. */
class Outputs {
  constructor(private readonly _outputs: IOutput[]) {}

  get length(): number {
    return this._outputs.length;
  }

  get(place: number): IOutput {
    return this._outputs[place];
  }

  set(place: number, output: object): void {
    this._outputs[place] = output as IOutput;
  }
}

it('ends only what is true while the cell waits', () => {
  const printed = { output_type: 'stream', metadata: {} };
  const others = { metadata: { gpushare: { other: 1 } } };
  const waits = { metadata: { gpushare: { waits: true } } };
  const outputs = new Outputs([printed, waits, others]);
  endWaits(outputs, 'Stopped waiting: the kernel ended.');
  expect(outputs.get(0)).toBe(printed);
  expect(outputs.get(1)).toEqual({
    output_type: 'display_data',
    data: { 'text/plain': 'Stopped waiting: the kernel ended.' },
    metadata: {}
  });
  expect(outputs.get(2)).toBe(others);
});
