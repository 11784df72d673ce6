/** What `within` answers when the work was not done in time. It goes on all the same. */
export const LATE = Symbol("late");

/** The result of `work`, or LATE after `milliseconds`. */
export async function within<T>(milliseconds: number, work: Promise<T>): Promise<T | typeof LATE> {
  let timer: NodeJS.Timeout | undefined;
  const late = new Promise<typeof LATE>((resolve) => {
    timer = setTimeout(resolve, Math.min(milliseconds, 2 ** 31 - 1), LATE);
  });
  try {
    return await Promise.race([work, late]);
  } finally {
    clearTimeout(timer);
  }
}
