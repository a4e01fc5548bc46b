/** Lays out what the node manager has said, and counts down. */
import React from 'react';

import type { Said } from '../api/types';
import { capital, wordsOf } from '../text/said';
import { useLook, useSettings, useView } from './host';
import { UseBar } from './parts';

/** Several facts in one line, as they are now. */
export function useWords(says: readonly Said[], between?: string): string {
  const { trans } = useView();
  const { units } = useSettings();
  return useLook(now => wordsOf(says, { trans, units, now }, between));
}

/**
 * The same, drawn by itself: what counts on draws nothing else anew. What is typed stands between
 * backticks.
 */
export function Words(props: {
  says: readonly Said[];
  between?: string;
}): JSX.Element {
  const parts = capital(useWords(props.says, props.between)).split('`');
  return (
    <>
      {parts.map((part, place) =>
        place % 2 ? <code key={place}>{part}</code> : part
      )}
    </>
  );
}

/** One fact in a line of its own. */
export function SaidLine(props: {
  said: Said;
  children?: React.ReactNode;
}): JSX.Element {
  const { said } = props;
  return (
    <div
      className="jp-gpushare-said"
      data-about={said.about}
      data-tone={said.tone}
      title={said.hint}
    >
      <Words says={[said]} />
      {props.children}
    </div>
  );
}

export function SaidLines(props: { says: readonly Said[] }): JSX.Element {
  return (
    <>
      {props.says.map((said, place) => (
        <SaidLine key={`${said.about} ${place}`} said={said} />
      ))}
    </>
  );
}

/** A fact with a bar. `label` is its name for those who do not see what stands around it. */
export function Meter(props: {
  said: Said;
  name: string;
  label?: string;
}): JSX.Element {
  const { said, name, label = name } = props;
  const text = useWords([said]);
  return (
    <div className="jp-gpushare-use" data-about={said.about}>
      <div className="jp-gpushare-use-words" title={said.hint}>
        <span>{name}</span>
        <strong>{capital(text)}</strong>
      </div>
      {said.share !== undefined && (
        <>
          <UseBar
            label={label}
            text={text}
            share={said.share}
            tone={said.tone ?? 'plain'}
          />
          {said.hint && <p className="jp-gpushare-advice">{said.hint}</p>}
        </>
      )}
    </div>
  );
}

/** Facts: those with a bar and sentences as they come, then the others by their names. */
export function Facts(props: { says: readonly Said[] }): JSX.Element {
  const isNamed = ({ label, share }: Said): boolean =>
    label !== undefined && share === undefined;
  const named = props.says.filter(isNamed);
  return (
    <>
      {props.says
        .filter(said => !isNamed(said))
        .map((said, place) =>
          said.label === undefined ? (
            <SaidLine key={place} said={said} />
          ) : (
            <Meter key={place} said={said} name={said.label} />
          )
        )}
      {named.length > 0 && (
        <dl className="jp-gpushare-facts">
          {named.map((said, place) => (
            <React.Fragment key={place}>
              <dt title={said.hint}>{said.label}</dt>
              <dd>
                <Words says={[said]} />
              </dd>
            </React.Fragment>
          ))}
        </dl>
      )}
    </>
  );
}

/** More, shown on demand behind a line. */
export function Details(props: {
  title: React.ReactNode;
  children: React.ReactNode;
}): JSX.Element {
  return (
    <details className="jp-gpushare-details">
      <summary>{props.title}</summary>
      {props.children}
    </details>
  );
}
