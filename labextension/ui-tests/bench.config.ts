import { defineConfig } from '@playwright/test';
import base from './playwright.config';

/** Measuring, not testing: `make bench-ui`. */
export default defineConfig({
  ...base,
  testDir: 'bench',
  testMatch: '*.bench.ts',
  workers: 1,
  projects: [{ name: 'bench' }],
  timeout: 1_200_000,
  use: { ...base.use, trace: 'off', screenshot: 'off' }
});
