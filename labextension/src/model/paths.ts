/**
 * A path as the server's file browser names it; `null` where the file is outside its root.
 *
 * Notebooks come relative to the root already, programs with their absolute path. A root that the
 * server abbreviates with `~` is not known here, so nothing absolute is taken to be under it.
 */
export function underRoot(path: string, root: string): string | null {
  if (!path.startsWith('/')) {
    return path;
  }
  const folder = root.endsWith('/') ? root : `${root}/`;
  return root.startsWith('/') && path.startsWith(folder)
    ? path.slice(folder.length)
    : null;
}
