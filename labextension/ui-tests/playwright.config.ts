import { defineConfig } from '@playwright/test';

const HUB = ['**/hub.spec.ts', '**/pool.spec.ts'];

// Debian's chromium: nothing is downloaded. The servers are started by support/servers.ts.
export default defineConfig({
  testDir: 'tests',
  outputDir: 'test-results',
  reporter: 'list',
  forbidOnly: true,
  retries: 0,
  // Each has servers and pages of its own, for all of its tests; those of a Hub are others, and begin.
  workers: 2,
  projects: [
    { name: 'hub', testMatch: HUB },
    { name: 'lab', testIgnore: HUB }
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
        '--disable-gpu',
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
