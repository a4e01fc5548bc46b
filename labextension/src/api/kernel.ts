import { KernelAPI, type KernelMessage } from '@jupyterlab/services';
import type { Kernel, ServiceManager } from '@jupyterlab/services';

/** Why a kernel did not do what it was asked; `message` is for people. */
export class KernelRefused extends Error {
  constructor(
    readonly why: 'not-here' | 'busy' | 'gone' | 'refused',
    message = ''
  ) {
    super(message);
    this.name = 'KernelRefused';
  }
}

/**
 * Run one line of ours in a kernel, outside of any document, and return what it said last.
 *
 * It is no cell: nothing is written into a notebook, the count of cells does not go on, and
 * cells that wait are not given up when it fails. A kernel that runs code is not asked, for the
 * line would run at some time later. Raises `KernelRefused`.
 */
export async function runLine(
  services: ServiceManager.IManager,
  kernelId: string,
  code: string
): Promise<string> {
  const model = await KernelAPI.getKernelModel(
    kernelId,
    services.serverSettings
  );
  if (!model) {
    throw new KernelRefused('not-here');
  }
  if (model.execution_state === 'busy') {
    throw new KernelRefused('busy');
  }
  // A connection of its own: the widgets of an open notebook keep theirs.
  const kernel = services.kernels.connectTo({ model, handleComms: false });
  try {
    return await said(kernel, code);
  } finally {
    kernel.dispose();
  }
}

async function said(
  kernel: Kernel.IKernelConnection,
  code: string
): Promise<string> {
  const future = kernel.requestExecute({
    code,
    silent: false,
    store_history: false,
    allow_stdin: false,
    stop_on_error: false
  });
  let last = '';
  future.onIOPub = message => {
    last = textOf(message) ?? last;
  };
  let reply: KernelMessage.IExecuteReplyMsg;
  try {
    reply = await future.done;
  } catch {
    throw new KernelRefused('gone'); // it was restarted or ended meanwhile
  }
  const { content } = reply;
  if (content.status === 'ok') {
    return last;
  }
  throw new KernelRefused(
    'refused',
    content.status === 'error' ? content.evalue || content.ename : ''
  );
}

/** The plain text of a message that stays: those about a wait are replaced later. */
function textOf(message: KernelMessage.IIOPubMessage): string | null {
  if (message.header.msg_type !== 'display_data') {
    return null;
  }
  const { data } = message.content as KernelMessage.IDisplayDataMsg['content'];
  const text = data['text/plain'];
  return typeof text === 'string' ? text : null;
}
