// Numbers as text.

const LOCALE = "en";

/** 1281167 → "1,281,167" */
export function count(value) {
  return Number(value).toLocaleString(LOCALE);
}

/** 1, "image" → "1 image" */
export function counted(value, noun, plural = `${noun}s`) {
  return `${count(value)} ${value === 1 ? noun : plural}`;
}

/** 112640 → "113 kB" */
export function bytes(value) {
  const units = ["B", "kB", "MB", "GB", "TB"];
  let number = value;
  let unit = 0;
  while (number >= 999.5 && unit < units.length - 1) {
    number /= 1000;
    unit += 1;
  }
  return `${number.toLocaleString(LOCALE, { maximumSignificantDigits: unit ? 3 : 15 })} ${units[unit]}`;
}

/** 0.1234 → "12 %" */
export function percent(value) {
  return `${(100 * value).toLocaleString(LOCALE, { maximumSignificantDigits: value < 0.1 ? 2 : 3 })} %`;
}

/** A number of any size with few digits. */
export function number(value) {
  return Number.isInteger(value) ? count(value) : value.toLocaleString(LOCALE, { maximumSignificantDigits: 4 });
}
