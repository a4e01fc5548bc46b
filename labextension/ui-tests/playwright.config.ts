import { defineConfig } from '@playwright/test';

// Debian's chromium: nothing is downloaded. The servers are started by support/servers.ts.
export default defineConfig({
  testDir: 'tests',
  outputDir: 'test-results',
  reporter: 'list',
  forbidOnly: true,
  retries: 0,
  // Each has servers of its own. A file's tests stay together, so they are started once for all
  // files that want the same node manager; the file that waits most begins.
  workers: 2,
  projects: [
    { name: 'parking', testMatch: '**/parking.spec.ts' },
    { name: 'hub', testMatch: '**/hub.spec.ts' },
    { name: 'pool', testMatch: '**/pool.spec.ts' },
    {
      name: 'lab',
      testIgnore: ['**/parking.spec.ts', '**/hub.spec.ts', '**/pool.spec.ts']
    }
  ],
  timeout: 300_000,
  expect: { timeout: 20_000 },
  use: {
    browserName: 'chromium',
    launchOptions: {
      executablePath: process.env.CHROMIUM || '/usr/bin/chromium',
      args: [
        '--no-sandbox',
        '--disable-dev-shm-usage',
        '--disable-background-networking'
      ]
    },
    viewport: { width: 1280, height: 800 },
    screenshot: 'only-on-failure',
    // It takes a fifth of the time: TRACE=1 asks for it.
    trace: process.env.TRACE ? 'retain-on-failure' : 'off',
    video: 'off'
  }
});
