/** What the user waits for: "the messages". */
export function Loading({ what }: { what: string }) {
  return (
    <p class="note thinking" role="status">
      <span class="pulse" aria-hidden="true" /> Loading {what}
    </p>
  );
}
