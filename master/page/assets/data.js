// Views that are read when a page is opened, and read again while it is shown.
export async function get(view, given) {
  const query = new URLSearchParams(given || {}).toString();
  const reply = await fetch(`/ui/data/${view}${query ? "?" + query : ""}`, { cache: "no-store" });
  if (!reply.ok) throw new Error((await reply.text()).trim() || `status ${reply.status}`);
  return reply.json();
}

/** Read a view now and then every `period_ms`, until `end` is called. Errors go to `failed`, and the next try follows. */
export function follow(view, given, period_ms, show, failed) {
  let timer = 0, isOver = false, latest = 0;
  const read = async () => {
    clearTimeout(timer);
    const mine = ++latest, isLatest = () => !isOver && mine === latest; // a reply that comes late is about something else
    try {
      const found = await get(view, given());
      if (isLatest()) show(found);
    } catch (error) {
      if (isLatest()) failed(error.message);
    }
    if (isLatest()) timer = setTimeout(read, period_ms);
  };
  read();
  return { again: read, end() { isOver = true; clearTimeout(timer); } };
}
