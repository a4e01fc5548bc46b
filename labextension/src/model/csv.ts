/** Tables as comma-separated values. Pure. */

/** A cell that a spreadsheet would run as a formula begins with one of these. */
const FORMULA = /^[=+\-@\t\r]/;

/**
 * Write rows as CSV (RFC 4180, lines end with CR LF).
 *
 * Text that a spreadsheet would take for a formula gets an apostrophe before it: names come
 * from other people.
 */
export function toCsv(
  header: readonly string[],
  rows: readonly (readonly (string | number)[])[]
): string {
  return [header, ...rows]
    .map(row => row.map(cell).join(',') + '\r\n')
    .join('');
}

function cell(value: string | number): string {
  if (typeof value === 'number') {
    return String(value);
  }
  const text = FORMULA.test(value) ? `'${value}` : value;
  return /[",\r\n]/.test(text) ? `"${text.replace(/"/g, '""')}"` : text;
}
