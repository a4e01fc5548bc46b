// JupyterLab's packages come as ES modules, which jest has to translate.
const base = require('@jupyterlab/testutils/lib/jest-config')(__dirname);
const modules = [
  '@codemirror',
  '@jupyter',
  '@jupyterlab',
  '@microsoft',
  'exenv-es6',
  'lib0',
  'nanoid',
  'vscode-ws-jsonrpc',
  'y-protocols',
  'y-websocket',
  'yjs'
];

module.exports = {
  ...base,
  automock: false,
  testTimeout: 60_000,
  reporters: ['default'],
  collectCoverageFrom: ['src/**/*.{ts,tsx}', '!src/**/__tests__/**'],
  coverageReporters: ['lcov', 'text-summary'],
  transform: {
    ...base.transform,
    // Each file by itself: `tsc` of lint:check looks at types.
    '^.+\\.tsx?$': ['ts-jest/legacy', { tsconfig: './tsconfig.test.json' }]
  },
  testRegex: 'src/.*\\.spec\\.tsx?$',
  transformIgnorePatterns: [`/node_modules/(?!(${modules.join('|')})).+`]
};
