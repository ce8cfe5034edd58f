/** Everything that `source` yields. (Array.fromAsync is not in Node 20.) */
export async function all<T>(source: AsyncIterable<T>): Promise<T[]> {
  const items: T[] = [];
  for await (const item of source) items.push(item);
  return items;
}
