import type { components } from './schema';

type Schemas = components['schemas'];

/** The status document: node, quota, GPUs, leases and queue as this viewer may see them. */
export type Status = Schemas['Status'];
export type Quota = NonNullable<Status['quota']>;
export type Gpu = Schemas['Gpu'];
export type Lease = Schemas['Lease'];
/** One fact as a person reads it: the node manager words it. */
export type Said = Schemas['Said'];
/** The same, or in one line where it has only a text, and perhaps a tone. */
export type Fact = Said | string;
export type Job = Schemas['Job'];
export type LeaseState = Lease['state'];
/** A waiting request. */
export type Waiting = Schemas['Waiting'];
/** What a dry run told of a notebook's model, by kind of GPU. */
export type Prediction = NonNullable<Status['predictions']>[number];
/** The messages of the WebSocket. */
export type Live = Schemas['Live'];
export type Readings = Schemas['Readings'];
export type DailyUsage = Schemas['DailyUsage'];
export type Day = DailyUsage['days'][number];
/** A model server that one may use. */
export type Server = Schemas['Server'];
export type LeaseAnswer = Schemas['LeaseState'];
export type Kernels = Schemas['Kernels'];
/** A kernel whose host the pool chose. */
export type KernelElsewhere = NonNullable<Kernels['elsewhere']>[number];
export type MovedKernel = Schemas['MovedKernel'];
/** A kernelspec whose Python lacks the import hook. */
export type LackingKernel = Kernels['lacking'][number];
