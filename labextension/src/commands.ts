/** The ids of our commands. */
export const CommandIDs = {
  /** Show the side panel. */
  showPanel: 'gpushare:show-panel',
  /** Ask for the newest state now. */
  refresh: 'gpushare:refresh',
  /** Give a lease's GPUs back, or all of a job's; `{lease}`, `{job}` or the current notebook's. */
  release: 'gpushare:release',
  /** Leave the queue; `{lease}` or the current notebook's. */
  cancel: 'gpushare:cancel',
  /** Keep an idle lease's GPUs; `{lease}`, `{seconds}`: 0 is no longer, absent the usual time. */
  keep: 'gpushare:keep',
  /** Ask for a GPU for the current notebook: a form, or `{gpus, memory, priorityClass}`. */
  request: 'gpushare:request',
  /** Give an idle kernel's GPU back and keep its variables; `{lease}` or the current notebook's. */
  park: 'gpushare:park',
  /** Get a GPU again for the parked notebook; `{lease}` or the current notebook's. */
  resume: 'gpushare:resume',
  /** Open the notebook or script of `{lease}`. */
  open: 'gpushare:open',
  /** Restart the kernel of `{lease}`, or the current notebook's. */
  restartKernel: 'gpushare:restart-kernel',
  /** Start the kernel of `{lease}` again on `{host}` of the pool; its variables are lost. */
  startElsewhere: 'gpushare:start-elsewhere',
  /** Open the usage charts in the main area. */
  showHistory: 'gpushare:show-history',
  /** Open the server's pages of administration, or the form about `{gpu}` (administrators). */
  showAdmin: 'gpushare:show-admin'
} as const;
