import type { TranslationBundle } from '@jupyterlab/translation';
import {
  Button,
  checkIcon,
  closeIcon,
  editIcon,
  HTMLSelect,
  Table,
  undoIcon
} from '@jupyterlab/ui-components';
import React from 'react';

import type { Quotas, QuotaWish, Status } from '../api/types';
import {
  type DraftField,
  draftOf,
  environmentRows,
  type IEnvironmentRow,
  type IQuotaDraft,
  MOST_GPUS,
  MOST_SHARE,
  readDraft,
  RULE_FIELDS,
  type Rules,
  rulesOf,
  undoOf
} from '../model/admin';
import {
  formatBytes,
  formatDuration,
  formatGpuHours,
  formatGpus,
  type Units
} from '../text/format';
import { useFetched } from './fetched';
import { useSettings, useView } from './host';
import { FetchNote, IconButton } from './parts';

const HOUR = 3600;
/** The inputs in the column of GPU-hours and rules. */
const RULES = ['hours', 'per', ...RULE_FIELDS] as const;
const WINDOWS = [HOUR, 24 * HOUR, 7 * 24 * HOUR, 30 * 24 * HOUR];

/** A change that was made, and how to take it back. */
interface IDone {
  readonly environment: string;
  readonly text: string;
  /** Possible mistakes in the quota, in the node manager's words. */
  readonly warnings: readonly string[];
  /** The quota to set again; `null`: remove the override. */
  readonly undo: QuotaWish | null;
}

/** Every environment with quota and use; quotas are edited in place. */
export function AdminQuotas(props: { status: Status }): JSX.Element {
  const { trans, model } = useView();
  const { units } = useSettings();
  const [span, setSpan] = React.useState(WINDOWS[1]);
  const [filter, setFilter] = React.useState('');
  const [draft, setDraft] = React.useState<IQuotaDraft | null>(null);
  /** The environment that is edited; `null` while a new one is typed. */
  const [editing, setEditing] = React.useState<string | null>(null);
  const [refusal, setRefusal] = React.useState<string | null>(null);
  const [done, setDone] = React.useState<IDone | null>(null);
  const fetch = React.useCallback(async () => {
    const [quotas, usage] = await Promise.all([
      model.api.quotas(),
      model.api.usage(span)
    ]);
    return { quotas, usage };
  }, [model, span]);
  const { data, error, refresh } = useFetched('quotas', fetch);
  const note = (
    <FetchNote
      what={trans.__('quotas')}
      hasData={data !== null}
      error={error}
    />
  );
  if (!data) {
    return note;
  }

  const close = (): void => {
    setDraft(null);
    setEditing(null);
    setRefusal(null);
  };
  /** Set a quota, or (`null`) remove the override. What was typed stays until it worked. */
  const apply = async (
    environment: string,
    wish: QuotaWish | null,
    before: Quotas | null
  ): Promise<void> => {
    let warnings: readonly string[] = [];
    try {
      if (wish) {
        const now = await model.api.setQuota(environment, wish);
        warnings = now.warnings ?? [];
      } else {
        await model.api.unsetQuota(environment);
      }
    } catch (failed) {
      setRefusal(failed instanceof Error ? failed.message : String(failed));
      return;
    }
    close();
    setDone(
      before && {
        environment,
        warnings,
        text: wish
          ? trans.__(
              'The quota of %1 is now %2.',
              environment,
              wishText(wish, units, trans)
            )
          : trans.__('%1 has its configured quota again.', environment),
        undo: undoOf(environment, before)
      }
    );
    refresh();
  };
  const read = draft && readDraft(draft);
  const save = (): void => {
    if (draft && read?.wish) {
      void apply(draft.environment, read.wish, data.quotas);
    }
  };
  const inputs = draftInputs(trans);
  const field = (name: DraftField): JSX.Element | null =>
    draft && (
      <DraftInput
        key={name}
        label={
          editing === null
            ? inputs[name].label
            : trans.__('%1 of %2', inputs[name].label, editing)
        }
        placeholder={inputs[name].placeholder}
        value={draft[name]}
        mistake={read?.mistakes?.includes(name) ? inputs[name].wanted : null}
        autoFocus={name === (editing === null ? 'environment' : 'gpus')}
        onChange={value => setDraft({ ...draft, [name]: value })}
        onSave={save}
        onCancel={close}
      />
    );
  const buttons = (
    <span className="jp-gpushare-actions">
      <IconButton
        icon={checkIcon}
        label={trans.__('Save')}
        disabled={!read?.wish}
        onClick={save}
      />
      <IconButton icon={closeIcon} label={trans.__('Cancel')} onClick={close} />
    </span>
  );

  const rows = environmentRows(
    data.quotas,
    data.usage.rows,
    props.status
  ).filter(row => row.environment.toLowerCase().includes(filter.toLowerCase()));
  const number =
    (of: (row: IEnvironmentRow) => number) =>
    (a: IEnvironmentRow, b: IEnvironmentRow) =>
      of(a) - of(b);
  const edited = (row: IEnvironmentRow): boolean =>
    draft !== null && editing === row.environment;
  const columns: Table.IColumn<IEnvironmentRow>[] = [
    {
      id: 'environment',
      label: trans.__('Environment'),
      renderCell: row => <strong>{row.environment}</strong>,
      sort: (a, b) => a.environment.localeCompare(b.environment)
    },
    {
      id: 'gpus',
      label: trans.__('GPUs'),
      renderCell: row =>
        edited(row) ? (
          field('gpus')
        ) : (
          <span data-over={row.usedGpus > row.gpus}>
            {trans.__('%1 of %2', row.usedGpus, row.gpus)}
          </span>
        ),
      sort: number(row => row.usedGpus)
    },
    {
      id: 'memory',
      label: trans.__('Memory each'),
      renderCell: row =>
        edited(row)
          ? field('memory')
          : row.memory === null
            ? trans.__('whole GPU')
            : formatBytes(row.memory, units),
      sort: number(row => row.memory ?? Infinity)
    },
    {
      id: 'weight',
      label: trans.__('Weight'),
      renderCell: row => (edited(row) ? field('weight') : row.weight),
      sort: number(row => row.weight)
    },
    {
      id: 'budget',
      label: trans.__('GPU-hours and rules'),
      renderCell: row =>
        edited(row) ? (
          <>{RULES.map(field)}</>
        ) : (
          <>
            <span data-over={row.isSpent}>{budgetText(row, trans)}</span>
            <div>{ownText(row.rules, units, trans)}</div>
          </>
        ),
      sort: number(row => row.hours ?? Infinity)
    },
    {
      id: 'leases',
      label: trans.__('Leases'),
      renderCell: row =>
        row.waiting
          ? trans.__('%1, %2 waiting', row.leases, row.waiting)
          : row.leases,
      sort: number(row => row.leases + row.waiting)
    },
    {
      id: 'held',
      label: trans.__('GPU-hours held'),
      renderCell: row => (
        <span
          title={trans.__(
            '%1 held, %2 busy',
            formatGpuHours(row.held),
            formatGpuHours(row.busy)
          )}
        >
          {trans.__(
            '%1 (%2 busy)',
            formatGpuHours(row.held),
            formatGpuHours(row.busy)
          )}
        </span>
      ),
      sort: number(row => row.held)
    },
    {
      id: 'source',
      label: trans.__('Set by'),
      renderCell: row => sourceWord(row.source, trans),
      sort: (a, b) => a.source.localeCompare(b.source)
    },
    {
      id: 'actions',
      label: trans.__('Change'),
      renderCell: row =>
        edited(row) ? (
          buttons
        ) : (
          <span className="jp-gpushare-actions">
            <IconButton
              icon={editIcon}
              label={trans.__('Edit the quota of %1', row.environment)}
              onClick={() => {
                setDone(null);
                setRefusal(null);
                setDraft(draftOf(row));
                setEditing(row.environment);
              }}
            />
            {row.source === 'override' && (
              <IconButton
                icon={undoIcon}
                label={trans.__(
                  'Give %1 its configured quota again',
                  row.environment
                )}
                onClick={() => void apply(row.environment, null, data.quotas)}
              />
            )}
          </span>
        ),
      sort: () => 0
    }
  ];
  return (
    <>
      <div className="jp-gpushare-controls">
        <input
          type="search"
          className="jp-mod-styled"
          placeholder={trans.__('Filter')}
          aria-label={trans.__('Filter the environments')}
          value={filter}
          onChange={event => setFilter(event.target.value)}
        />
        <HTMLSelect
          aria-label={trans.__('Window of the GPU-hours')}
          value={span}
          onChange={event => setSpan(Number(event.target.value))}
          options={WINDOWS.map(seconds => ({
            value: seconds,
            label: windowText(seconds, trans)
          }))}
        />
        <Button
          type="button"
          className="jp-mod-styled"
          onClick={() => {
            setDone(null);
            setRefusal(null);
            setEditing(null);
            const { gpu_hours: hours = null, ...quota } = data.quotas.default;
            const rules = rulesOf(data.quotas.default);
            setDraft(draftOf({ environment: '', hours, ...quota, rules }));
          }}
        >
          {trans.__('Add')}
        </Button>
      </div>
      {note}
      {done && (
        <p className="jp-gpushare-note" role="status">
          {done.text}{' '}
          <Button
            type="button"
            className="jp-mod-styled"
            onClick={() => void apply(done.environment, done.undo, null)}
          >
            {trans.__('Undo')}
          </Button>
        </p>
      )}
      {done?.warnings.map(warning => (
        <p key={warning} className="jp-gpushare-advice" role="alert">
          {warning}
        </p>
      ))}
      {refusal !== null && (
        <p className="jp-gpushare-advice" role="alert">
          {trans.__('Not changed: %1', refusal)}
        </p>
      )}
      {draft && editing === null && (
        <div className="jp-gpushare-controls">
          {(Object.keys(inputs) as DraftField[]).map(field)}
          {buttons}
        </div>
      )}
      <div
        className="jp-gpushare-scroll"
        tabIndex={0}
        role="group"
        aria-label={trans.__('Table of environments')}
      >
        <Table
          rows={rows.map(row => ({ data: row, key: row.environment }))}
          columns={columns}
          sortKey="environment"
          sortDirection={1}
          blankIndicator={() => ''}
        />
        {rows.length === 0 && (
          <p>{trans.__('No environment has this in its name.')}</p>
        )}
      </div>
    </>
  );
}

function DraftInput(props: {
  label: string;
  placeholder?: string;
  value: string;
  mistake: string | null;
  autoFocus: boolean;
  onChange: (value: string) => void;
  onSave: () => void;
  onCancel: () => void;
}): JSX.Element {
  const id = React.useId();
  return (
    <span className="jp-gpushare-draft">
      <input
        type="text"
        className="jp-mod-styled"
        aria-label={props.label}
        title={props.label}
        placeholder={props.placeholder}
        value={props.value}
        autoFocus={props.autoFocus}
        aria-invalid={props.mistake !== null}
        aria-describedby={props.mistake === null ? undefined : id}
        onChange={event => props.onChange(event.target.value)}
        onKeyDown={event => {
          if (event.key === 'Enter') {
            props.onSave();
          } else if (event.key === 'Escape') {
            event.stopPropagation();
            props.onCancel();
          }
        }}
      />
      {props.mistake !== null && <span id={id}>{props.mistake}</span>}
    </span>
  );
}

interface IDraftInput {
  readonly label: string;
  readonly placeholder?: string;
  /** What may be typed there, said beside anything else. */
  readonly wanted: string;
}

/** The inputs of a quota, in the order in which a new one is typed. */
function draftInputs(
  trans: TranslationBundle
): Record<DraftField, IDraftInput> {
  return {
    environment: {
      label: trans.__('Name of the environment'),
      placeholder: trans.__('name'),
      wanted: trans.__(
        'A name of at most 256 characters, without spaces around it or control characters.'
      )
    },
    gpus: {
      label: trans.__('GPUs'),
      wanted: trans.__('A whole number from 0 to %1.', MOST_GPUS)
    },
    memory: {
      label: trans.__('Memory on each GPU'),
      placeholder: trans.__('whole GPU'),
      wanted: trans.__(
        'A size with its unit, such as 8GiB or 16 GB; empty is the whole GPU.'
      )
    },
    weight: {
      label: trans.__('Weight'),
      wanted: trans.__('A number above 0, as 1 or 2.5.')
    },
    hours: {
      label: trans.__('Budget in GPU-hours'),
      placeholder: trans.__('no limit of GPU-hours'),
      wanted: trans.__('A number from 0, as 20 or 2.5; empty is no budget.')
    },
    per: {
      label: trans.__('Period of the budget'),
      placeholder: trans.__('week, month or 2026-10-01'),
      wanted: trans.__(
        'week, month, or the first day of the term as 2026-10-01; empty is the rolling window.'
      )
    },
    idle_timeout: {
      label: trans.__('Idle time-out in minutes'),
      placeholder: trans.__('idle minutes, as on the node'),
      wanted: trans.__(
        "Minutes from 0, which is never; empty is the node's own."
      )
    },
    burst_memory: {
      label: trans.__('Upper bound of lifted limits'),
      placeholder: trans.__('lifted to 60GiB or 0.9, as on the node'),
      wanted: trans.__(
        "A size such as 60GiB, or a part of a GPU such as 0.9; 0: none; empty is the node's own."
      )
    },
    turn_offset: {
      label: trans.__('Head-room in turns'),
      placeholder: trans.__('head-room in turns, as on the node'),
      wanted: trans.__("A size such as 1GiB, or 0; empty is the node's own.")
    },
    reserve: {
      label: trans.__('What a request reserves without a size'),
      placeholder: trans.__('whole, quota or estimate, as on the node'),
      wanted: trans.__(
        'whole: all that the quota gives; quota: that, until it is measured; estimate: what earlier runs needed; empty is as on the node.'
      )
    },
    pin_turn_limit: {
      label: trans.__('Minutes for which a pin keeps a turn'),
      placeholder: trans.__('minutes a pin keeps a turn, as on the node'),
      wanted: trans.__(
        "Minutes from 0, which is not at all; empty is the node's own."
      )
    },
    interactive: {
      label: trans.__('GPUs for interactive requests'),
      placeholder: trans.__('GPUs that may be interactive, no bound'),
      wanted: trans.__(
        'A whole number from 0 to %1; what is asked beyond is batch; empty is no bound.',
        MOST_GPUS
      )
    },
    share: {
      label: trans.__('Hundredths of a GPU for promises'),
      placeholder: trans.__('% of a GPU for promises, as on the node'),
      wanted: trans.__(
        "A whole number from 0, which is none, to %1; empty is the node's own.",
        MOST_SHARE
      )
    }
  };
}

function wishText(
  wish: QuotaWish,
  units: Units,
  trans: TranslationBundle
): string {
  const quota =
    typeof wish.memory === 'number'
      ? trans.__(
          '%1, %2 on each, weight %3',
          formatGpus(wish.gpus ?? 0, trans),
          formatBytes(wish.memory, units),
          wish.weight ?? 1
        )
      : trans.__(
          '%1, whole GPUs, weight %2',
          formatGpus(wish.gpus ?? 0, trans),
          wish.weight ?? 1
        );
  const budget =
    typeof wish.gpu_hours === 'number'
      ? trans.__('%1, %2 GPU-hours', quota, wish.gpu_hours) +
        periodText(wish.per ?? null, trans)
      : quota;
  const own = ownText(wish, units, trans);
  return own ? trans.__('%1, %2', budget, own) : budget;
}

/** A quota's own rules for what the node decides otherwise; empty if it leaves all to the node. */
function ownText(
  own: Partial<Rules>,
  units: Units,
  trans: TranslationBundle
): string {
  const rules = [];
  const { idle_timeout: idle, burst_memory: burst, turn_offset: offset } = own;
  const { reserve, pin_turn_limit: pin } = own;
  if (typeof idle === 'number') {
    rules.push(
      idle
        ? trans.__('idle GPUs taken after %1', formatDuration(idle, trans))
        : trans.__('idle GPUs never taken')
    );
  }
  if (typeof burst === 'number') {
    const most =
      burst <= 1 ? `${Math.round(burst * 100)} %` : formatBytes(burst, units);
    rules.push(
      burst
        ? trans.__('limits lifted to %1', most)
        : trans.__('limits not lifted')
    );
  }
  if (typeof offset === 'number') {
    rules.push(trans.__('%1 head-room in turns', formatBytes(offset, units)));
  }
  if (typeof reserve === 'string') {
    rules.push(trans.__('reserve %1', reserve));
  }
  if (typeof pin === 'number') {
    rules.push(
      pin
        ? trans.__('pins keep turns for %1', formatDuration(pin, trans))
        : trans.__('pins keep no turns')
    );
  }
  if (typeof own.interactive === 'number') {
    rules.push(
      trans.__(
        '%1 for interactive requests',
        formatGpus(own.interactive, trans)
      )
    );
  }
  if (typeof own.share === 'number') {
    rules.push(
      own.share
        ? trans.__('promises may claim %1 % of a GPU', own.share)
        : trans.__('no promises')
    );
  }
  return rules.join(', ');
}

/** The period of a budget, after its hours; empty for the rolling window. */
function periodText(per: string | null, trans: TranslationBundle): string {
  switch (per) {
    case null:
      return '';
    case 'week':
      return trans.__(' a week');
    case 'month':
      return trans.__(' a month');
    default:
      return trans.__(' since %1', per);
  }
}

/** `3.5 of 20`: GPU-hours spent in the node manager's rolling window, of those that may be. */
function budgetText(row: IEnvironmentRow, trans: TranslationBundle): string {
  if (row.hours === null) {
    return trans.__('not limited');
  }
  const period = periodText(row.per, trans);
  if (row.spent === null) {
    return `${row.hours}${period}`;
  }
  const used =
    trans.__('%1 of %2', formatGpuHours(row.spent * 3600), row.hours) + period;
  return row.isSpent ? trans.__('%1, spent', used) : used;
}

function sourceWord(
  source: IEnvironmentRow['source'],
  trans: TranslationBundle
): string {
  switch (source) {
    case 'default':
      return trans.__('default');
    case 'group':
      return trans.__('group');
    case 'user':
      return trans.__('configuration');
    case 'override':
      return trans.__('administrator');
    case 'pool':
      return trans.__('pool');
  }
}

function windowText(seconds: number, trans: TranslationBundle): string {
  const hours = seconds / HOUR;
  return hours < 24
    ? trans._n('last hour', 'last %1 hours', hours)
    : hours === 24
      ? trans.__('last 24 hours')
      : trans.__('last %1 days', hours / 24);
}
