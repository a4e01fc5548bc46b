import js from '@eslint/js';
import jupyterPlugin from '@jupyter/eslint-plugin';
import prettierRecommended from 'eslint-plugin-prettier/recommended';
import { defineConfig } from 'eslint/config';
import globals from 'globals';
import tseslint from 'typescript-eslint';

export default defineConfig([
  {
    ignores: [
      '**/node_modules',
      'lib',
      'coverage',
      '**/*.js',
      'src/api/schema.ts',
      'ui-tests/test-results',
      'ui-tests/playwright-report'
    ]
  },
  js.configs.recommended,
  tseslint.configs.recommended,
  { plugins: { jupyter: jupyterPlugin } },
  jupyterPlugin.configs.recommended,
  {
    files: ['scripts/*.mjs'],
    languageOptions: { globals: globals.node }
  },
  {
    files: ['src/**/*.ts', 'src/**/*.tsx'],
    languageOptions: {
      globals: globals.browser,
      parserOptions: { project: 'tsconfig.test.json' }
    },
    rules: {
      '@typescript-eslint/naming-convention': [
        'error',
        {
          selector: 'interface',
          format: ['PascalCase'],
          custom: { regex: '^I[A-Z]', match: true }
        }
      ],
      '@typescript-eslint/no-floating-promises': 'error',
      '@typescript-eslint/no-unused-vars': ['error', { args: 'none' }],
      // What is large and seldom seen loads on demand (widgets/lazy.tsx); the rest is small.
      'jupyter/prefer-lazy-imports': 'off',
      curly: ['error', 'all'],
      eqeqeq: 'error',
      'prefer-arrow-callback': 'error'
    }
  },
  {
    // What a test makes up is nobody's language.
    files: ['src/__tests__/**'],
    rules: { 'jupyter/no-untranslated-string': 'off' }
  },
  prettierRecommended
]);
