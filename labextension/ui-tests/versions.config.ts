import { defineConfig } from '@playwright/test';
import base from './playwright.config';

/** With the PYTHON of an environment of `make matrix`, which has other versions than `.venv`. */
export default defineConfig({
  ...base,
  testDir: 'versions',
  workers: 1,
  projects: [{ name: 'versions' }]
});
