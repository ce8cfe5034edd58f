/** Returns all items of `source`. (Node 20 has no Array.fromAsync.) */
export async function all<T>(source: AsyncIterable<T>): Promise<T[]> {
  const items: T[] = [];
  for await (const item of source) items.push(item);
  return items;
}
