/** Servers that one may use are laid out with what asks them, and never what opens them. */
import { Clipboard } from '@jupyterlab/apputils';
import { fireEvent, screen, waitFor } from '@testing-library/react';

import type { Server } from '../api/types';
import { ServersView } from '../widgets/servers';
import { aSaid, aStatus } from './support/builders';
import { show } from './support/views';

const server: Server = {
  environment: 'bob',
  mine: false,
  name: 'serve',
  address: 'http://127.0.0.1:8000',
  model: 'tiny',
  token: 'sk-1',
  says: [
    aSaid('who', 'bob'),
    aSaid('what', 'tiny'),
    aSaid('where', 'http://127.0.0.1:8000'),
    aSaid('state', 'asleep')
  ],
  snippet: 'client = OpenAI()'
};

it('shows each with its state and its address, and copies its snippet', async () => {
  const copy = jest.spyOn(Clipboard, 'copyToSystem').mockReturnValue();
  const shown = show(ServersView, aStatus());
  shown.model.server.on('GET', 'servers', 200, { servers: [server] });
  await waitFor(() => screen.getByText('tiny'));
  const text = shown.container.textContent;
  expect(text).toContain('Asleep · http://127.0.0.1:8000 · bob');
  expect(text).not.toContain('sk-1');
  fireEvent.click(
    screen.getByRole('button', { name: 'Copy Python that asks tiny' })
  );
  expect(copy).toHaveBeenCalledWith('client = OpenAI()');
  expect(screen.getByRole('button', { name: 'Copied' })).toBeTruthy();
});

it('says that there is none', async () => {
  const { model } = show(ServersView, aStatus());
  model.server.on('GET', 'servers', 200, { servers: [] });
  await waitFor(() => screen.getByText(/no model server/));
});
