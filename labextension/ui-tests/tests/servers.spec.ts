import { expectAccessible } from '../support/axe';
import { expect, test } from '../support/fixtures';
import { GpuPanel } from '../support/panel';

test.use({
  node: {
    simulate: '1x16GiB',
    policy: { idle_timeout: 1.0, notify_before: 0.0 }
  }
});

test('a model server has a row and is found by who may use it; it sleeps for a notebook and wakes', async ({
  open,
  page
}) => {
  const panel = await GpuPanel.open(page);
  const notebook = await open('asks.ipynb', [
    [
      'import http.server, os, pathlib, socket, subprocess, sys',
      'with socket.socket() as free: free.bind(("127.0.0.1", 0)); port = free.getsockname()[1]',
      'pathlib.Path("model.py").write_text("""',
      'import http.server, os',
      'class Model(http.server.BaseHTTPRequestHandler):',
      '    def do_GET(self):',
      '        self.send_response(200 if self.path in ("/health", "/v1/answer") else 404)',
      '        self.send_header("Content-Length", "2")',
      '        self.end_headers()',
      '        self.wfile.write(b"42")',
      'http.server.ThreadingHTTPServer(("127.0.0.1", int(os.environ["PORT"])), Model).serve_forever()',
      '""")',
      'serve = [sys.executable, "-m", "jupyter_gpushare.cli", "serve", "--port", str(port)]',
      'serve += ["--idle", "1s", "--rungs", "restart", "--name", "answers"]',
      'serve += ["--memory", "10GiB", "--", sys.executable, "model.py"]',
      'own = {k: v for k, v in os.environ.items() if k != "JUPYTER_GPUSHARE_LEASE"}',
      'server = subprocess.Popen(serve, env=own)'
    ].join('\n'),
    '%gpushare request --memory 16GiB',
    [
      'import urllib.request',
      'from jupyter_gpushare.client import release, server_token',
      'release()',
      'where = f"http://127.0.0.1:{port}"',
      'asked = {"Authorization": f"Bearer {server_token(where)}"}',
      'print(urllib.request.urlopen(urllib.request.Request(f"{where}/v1/answer", headers=asked)).read())'
    ].join('\n'),
    'server.terminate(); print(server.wait())'
  ]);
  await notebook.result(0);
  await expect(panel.lease('answers')).toContainText('http://127.0.0.1:');
  await panel.expand('Servers');
  const row = panel.root.locator('[data-server]');
  await expect(row).toContainText('answers');
  await expect(row).toContainText(/idle/i);
  await row.locator('summary').click();
  await expect(row).toContainText('server_token(address)');
  await expectAccessible(page, '.jp-gpushare-panel');

  await notebook.result(1);
  await expect(panel.lease('answers')).toContainText(/asleep/i);
  expect(await notebook.result(2)).toContain("b'42'");
  await expect(panel.lease('answers')).not.toContainText(/asleep/i);
  await notebook.result(3);
  await expect(panel.lease('answers')).toHaveCount(0);
});
