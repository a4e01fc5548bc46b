import { defineConfig } from '@playwright/test';
import base from './playwright.config';

/** With the PYTHON of an environment that has the oldest JupyterLab: `make test-oldest-lab`. */
export default defineConfig({
  ...base,
  testDir: 'oldest',
  workers: 1,
  projects: [{ name: 'oldest' }]
});
