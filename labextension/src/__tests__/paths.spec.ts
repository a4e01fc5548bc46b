import { underRoot } from '../model/paths';

it.each([
  ['work/a.ipynb', '/srv', 'work/a.ipynb'],
  ['/data/project/train.py', '/data', 'project/train.py'],
  ['/data/project/train.py', '/data/', 'project/train.py'],
  ['/srv2/train.py', '/srv', null],
  ['/train.py', '/', 'train.py'],
  ['/home/a/train.py', '~', null],
  ['/home/a/train.py', '', null]
])('%s under %s is %s', (path, root, found) => {
  expect(underRoot(path, root)).toBe(found);
});
