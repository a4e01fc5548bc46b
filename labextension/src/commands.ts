/** The ids of our commands. */
export namespace CommandIDs {
  /** Show the side panel. */
  export const showPanel = 'gpushare:show-panel';
  /** Ask for the newest state now. */
  export const refresh = 'gpushare:refresh';
  /** Give a lease's GPUs back; `{lease}` or the current notebook's. */
  export const release = 'gpushare:release';
  /** Leave the queue; `{lease}` or the current notebook's. */
  export const cancel = 'gpushare:cancel';
  /** Open the notebook or script of `{lease}`. */
  export const open = 'gpushare:open';
  /** Restart the kernel of `{lease}`, or the current notebook's. */
  export const restartKernel = 'gpushare:restart-kernel';
  /** Take `{lease}` away from its owner (administrators). */
  export const revoke = 'gpushare:revoke';
  /** Open the usage charts in the main area. */
  export const showHistory = 'gpushare:show-history';
  /** Open the administration in the main area (administrators). */
  export const showAdmin = 'gpushare:show-admin';
}
