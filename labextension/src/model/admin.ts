/** The administrator's view, and the input of its forms. Pure. */
import schemas from '../api/schemas.json';
import type {
  EnvironmentQuota,
  HistoryEvent,
  Quotas,
  QuotaWish,
  Status,
  UsageRow
} from '../api/types';
import { formatBytes, parseBytes } from '../text/format';

/** The fields of a quota that this editor has beside its columns. */
export type RuleField =
  | 'idle_timeout'
  | 'burst_memory'
  | 'turn_offset'
  | 'reserve'
  | 'pin_turn_limit'
  | 'interactive'
  | 'share';
type Rule = number | string | null;
/** A quota's own rules, in the wire's units; `null`: as on the node. */
export type Rules = Readonly<Record<RuleField, Rule>>;

/** One environment with everything that is known of it. */
export interface IEnvironmentRow {
  readonly environment: string;
  readonly gpus: number;
  /** Bytes on each GPU; `null`: whole GPUs. */
  readonly memory: number | null;
  readonly weight: number;
  /** GPU-hours in the node manager's rolling window; `null`: not limited. */
  readonly hours: number | null;
  /** What the GPU-hours are for: `week`, `month` or a day; `null`: the rolling window. */
  readonly per: string | null;
  readonly rules: Rules;
  /** GPU-hours spent of those; `null` where nothing is counted. */
  readonly spent: number | null;
  /** Whether all of them are spent: new requests wait. */
  readonly isSpent: boolean;
  readonly source: EnvironmentQuota['source'];
  readonly usedGpus: number;
  readonly leases: number;
  readonly waiting: number;
  /** GPU-seconds in the chosen window. */
  readonly held: number;
  readonly busy: number;
}

/**
 * Every environment that has a quota of its own, a lease, a waiting request or usage.
 *
 * One that is known by its usage alone has the default quota.
 */
export function environmentRows(
  quotas: Quotas,
  usage: readonly UsageRow[],
  status: Status
): IEnvironmentRow[] {
  const known = new Map(quotas.quotas.map(quota => [quota.environment, quota]));
  const used = new Map(usage.map(row => [row.environment, row]));
  const names = new Set([...known.keys(), ...used.keys()]);
  const leases = new Map<string, number>();
  const waiting = new Map<string, number>();
  for (const lease of status.leases) {
    if (lease.environment === null || lease.state === 'ended') {
      continue;
    }
    names.add(lease.environment);
    const counts = lease.state === 'queued' ? waiting : leases;
    counts.set(lease.environment, (counts.get(lease.environment) ?? 0) + 1);
  }
  return [...names].sort().map(environment => {
    const quota = known.get(environment);
    const row = used.get(environment);
    return {
      environment,
      gpus: quota?.gpus ?? quotas.default.gpus,
      memory: quota ? quota.memory : quotas.default.memory,
      weight: quota?.weight ?? quotas.default.weight,
      hours: quota
        ? (quota.budget?.hours ?? null)
        : (quotas.default.gpu_hours ?? null),
      per: (quota ? quota.budget?.per : quotas.default.per) ?? null,
      rules: rulesOf(quota ?? quotas.default),
      spent: quota?.budget?.spent ?? null,
      isSpent: quota?.budget?.level === 'spent',
      source: quota?.source ?? 'default',
      usedGpus: quota?.used_gpus ?? 0,
      leases: leases.get(environment) ?? 0,
      waiting: waiting.get(environment) ?? 0,
      held: row?.gpu_seconds_held ?? 0,
      busy: row?.gpu_seconds_busy ?? 0
    };
  });
}

/** A quota's own rules, as a node manager tells them; an older one does not know all. */
export function rulesOf(quota: EnvironmentQuota | Quotas['default']): Rules {
  return {
    idle_timeout: quota.idle_timeout ?? null,
    // Without its own it tells the node's there.
    burst_memory: quota.own_burst_memory ?? null,
    turn_offset: quota.turn_offset ?? null,
    reserve: quota.reserve ?? null,
    pin_turn_limit: quota.pin_turn_limit ?? null,
    interactive: quota.interactive ?? null,
    share: quota.share ?? null
  };
}

/** A quota as it is typed; an empty rule is as on the node. */
export interface IQuotaDraft extends Readonly<Record<RuleField, string>> {
  readonly environment: string;
  readonly gpus: string;
  /** Empty: whole GPUs. */
  readonly memory: string;
  readonly weight: string;
  /** GPU-hours; empty: they are not limited. */
  readonly hours: string;
  /** `week`, `month` or the first day of a term; empty: the rolling window. */
  readonly per: string;
}

export type DraftField = keyof IQuotaDraft;

/** The bounds that the server's OpenAPI document states. */
const {
  gpus: GPUS,
  weight: WEIGHT,
  gpu_hours: HOURS,
  idle_timeout: IDLE,
  reserve: RESERVE,
  pin_turn_limit: PIN,
  share: SHARE
} = schemas.components.schemas.QuotaWish.properties;
export const MOST_GPUS = GPUS.maximum;
export const MOST_SHARE = SHARE.maximum;
export const RESERVES: readonly string[] = RESERVE.enum.filter(
  word => word !== null
);
const LONGEST_NAME = 256;

/** How a rule is typed. */
interface IRuleText {
  readonly show: (value: NonNullable<Rule>) => string;
  /** `undefined`: it cannot be read. */
  readonly read: (text: string) => Rule | undefined;
}

/** Seconds that are typed as minutes. */
const minutes = (most: number): IRuleText => ({
  show: seconds => String(Number(seconds) / 60),
  read: text => {
    const number = readNumber(text, most / 60);
    return number === null || Number.isNaN(number) ? undefined : number * 60;
  }
});

const whole = (most: number): IRuleText => ({
  show: String,
  read: text => {
    const number = readNumber(text, most);
    return number !== null && Number.isInteger(number) ? number : undefined;
  }
});

/** A quota that gets another rule does not compile without this. */
const RULES: Readonly<Record<RuleField, IRuleText>> = {
  idle_timeout: minutes(IDLE.maximum),
  burst_memory: {
    show: burst =>
      Number(burst) <= 1 ? String(burst) : exactSize(Number(burst)),
    read: readBurst
  },
  turn_offset: {
    show: bytes => (bytes === 0 ? '0' : exactSize(Number(bytes))),
    read: text => (text === '0' ? 0 : (parseBytes(text) ?? undefined))
  },
  reserve: {
    show: String,
    read: text => (RESERVES.includes(text) ? text : undefined)
  },
  pin_turn_limit: minutes(PIN.maximum),
  interactive: whole(MOST_GPUS),
  share: whole(MOST_SHARE)
};
/** In the order of the page. */
export const RULE_FIELDS = Object.keys(RULES) as readonly RuleField[];

export type Drafted = Pick<
  IEnvironmentRow,
  'environment' | 'gpus' | 'memory' | 'weight' | 'hours'
> &
  Partial<Pick<IEnvironmentRow, 'per' | 'rules'>>;

export function draftOf(row: Drafted): IQuotaDraft {
  const typed = (field: RuleField): string => {
    const rule = row.rules?.[field] ?? null;
    return rule === null ? '' : RULES[field].show(rule);
  };
  return {
    environment: row.environment,
    gpus: String(row.gpus),
    memory: row.memory === null ? '' : exactSize(row.memory),
    weight: String(row.weight),
    hours: row.hours === null ? '' : String(row.hours),
    per: row.per ?? '',
    ...forEachRule(typed)
  };
}

function forEachRule<T>(of: (field: RuleField) => T): Record<RuleField, T> {
  const entries = RULE_FIELDS.map(field => [field, of(field)]);
  return Object.fromEntries(entries) as Record<RuleField, T>;
}

/** A size that reads back as the same bytes, as short as that allows. */
function exactSize(bytes: number): string {
  for (const units of ['binary', 'decimal'] as const) {
    const text = formatBytes(bytes, units);
    if (parseBytes(text) === bytes) {
      return text;
    }
  }
  return `${bytes / 1024} KiB`;
}

/** Read a draft: either what to ask the server for, or which fields cannot be read. */
export function readDraft(
  draft: IQuotaDraft
):
  | { wish: QuotaWish; mistakes: null }
  | { wish: null; mistakes: readonly DraftField[] } {
  const mistakes: DraftField[] = [];
  const check = (field: DraftField, right: boolean): void => {
    if (!right) {
      mistakes.push(field);
    }
  };
  const name = draft.environment;
  check(
    'environment',
    name !== '' &&
      name === name.trim() &&
      name.length <= LONGEST_NAME &&
      !/\p{Cc}|\u2028|\u2029/u.test(name)
  );
  const gpus = /^\s*\d+\s*$/.test(draft.gpus) ? Number(draft.gpus) : NaN;
  check('gpus', gpus <= MOST_GPUS);
  const memory = draft.memory.trim() ? parseBytes(draft.memory) : null;
  check('memory', !draft.memory.trim() || memory !== null);
  const weight = draft.weight.trim() ? Number(draft.weight) : NaN;
  check('weight', weight >= WEIGHT.minimum && weight <= WEIGHT.maximum);
  const hours = readNumber(draft.hours, HOURS.maximum);
  check('hours', !Number.isNaN(hours));
  const per = draft.per.trim() || null;
  check('per', !per || /^(week|month|\d{4}-\d\d-\d\d)$/.test(per));
  const rules = forEachRule((field): Rule => {
    const text = draft[field].trim();
    const rule = text ? RULES[field].read(text) : null;
    check(field, rule !== undefined);
    return rule ?? null;
  });
  return mistakes.length
    ? { wish: null, mistakes }
    : {
        wish: {
          gpus,
          memory,
          weight,
          gpu_hours: hours,
          ...(hours === null ? {} : { per }),
          ...(rules as Pick<QuotaWish, RuleField>)
        },
        mistakes: null
      };
}

/** A number as it is typed, with a point or a comma; `null`: nothing; NaN: no number up to `most`. */
function readNumber(text: string, most: number): number | null {
  if (!text.trim()) {
    return null;
  }
  const plain = /^\s*\d+(?:[.,]\d+)?(?:e[+-]?\d+)?\s*$/i.test(text);
  const read = plain ? Number(text.replace(',', '.')) : NaN;
  return read <= most ? read : NaN;
}

/** A share of a GPU up to 1, or bytes; `undefined`: neither. */
function readBurst(text: string): number | undefined {
  const share = readNumber(text, 1);
  return share === null || Number.isNaN(share)
    ? (parseBytes(text) ?? undefined)
    : share;
}

/** The way back to the quota before a change: another wish, or no override at all. */
export function undoOf(
  environment: string,
  before: Quotas | null
): QuotaWish | null {
  const quota = before?.quotas.find(row => row.environment === environment);
  return quota && quota.source === 'override'
    ? {
        gpus: quota.gpus,
        memory: quota.memory,
        weight: quota.weight,
        gpu_hours: quota.budget?.hours ?? null,
        ...(quota.budget ? { per: quota.budget.per ?? null } : {}),
        ...(rulesOf(quota) as Pick<QuotaWish, RuleField>)
      }
    : null;
}

/** Which events are looked for; empty texts ask for nothing. */
export interface IEventFilter {
  readonly text: string;
  readonly kind: string;
  readonly environment: string;
}

export function filteredEvents(
  events: readonly HistoryEvent[],
  filter: IEventFilter
): HistoryEvent[] {
  const text = filter.text.trim().toLowerCase();
  return events.filter(
    event =>
      (!filter.kind || event.kind === filter.kind) &&
      (!filter.environment || event.environment === filter.environment) &&
      (!text ||
        [event.text, event.environment, event.lease, event.kind].some(part =>
          part?.toLowerCase().includes(text)
        ))
  );
}

/** The values there are to choose from, sorted. */
export function choices(
  events: readonly HistoryEvent[],
  of: 'kind' | 'environment'
): string[] {
  return [
    ...new Set(
      events
        .map(event => event[of])
        .filter((value): value is string => value !== null)
    )
  ].sort();
}
