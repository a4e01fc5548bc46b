import Ajv, { type ValidateFunction } from 'ajv/dist/2020';

import schemas from './schemas.json';
import type { components } from './schema';

type Schemas = components['schemas'];

/** An answer that is not what the OpenAPI document promises: most often another version's. */
export class BadAnswer extends Error {
  constructor(
    readonly expected: string,
    readonly detail: string
  ) {
    super(`The server's answer is no ${expected}: ${detail}`);
    this.name = 'BadAnswer';
  }
}

// The document says more than JSON Schema knows (descriptions, examples): not strict.
const ajv = new Ajv({ strict: false, validateFormats: false });
ajv.addSchema(schemas, 'gpushare');
const compiled = new Map<keyof Schemas, ValidateFunction>();

/**
 * Return `data` as what the schema `name` says it is.
 *
 * Throws {@link BadAnswer} where it is something else: what is past this border has its type.
 */
export function validated<Name extends keyof Schemas>(
  name: Name,
  data: unknown
): Schemas[Name] {
  let check = compiled.get(name);
  if (!check) {
    check = ajv.compile({ $ref: `gpushare#/components/schemas/${name}` });
    compiled.set(name, check);
  }
  if (!check(data)) {
    throw new BadAnswer(name, ajv.errorsText(check.errors));
  }
  return data as Schemas[Name];
}
