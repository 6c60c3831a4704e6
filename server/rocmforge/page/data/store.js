// Conversations in the browser's IndexedDB. Nothing of them is kept on the server.

const NAME = "conversations";

function asPromise(request) {
  return new Promise((resolve, reject) => {
    request.onsuccess = () => resolve(request.result);
    request.onerror = () => reject(request.error);
  });
}

let opened;
function open() {
  opened ??= (() => {
    const request = indexedDB.open("rocmforge", 1);
    request.onupgradeneeded = () => request.result.createObjectStore(NAME, { keyPath: "id" });
    return asPromise(request);
  })();
  return opened;
}

const table = async (mode) => (await open()).transaction(NAME, mode).objectStore(NAME);

/** All of them, the one that was used last first. */
export async function readAll() {
  const all = await asPromise((await table("readonly")).getAll());
  return all.sort((a, b) => b.updated - a.updated);
}

export const write = async (conversation) =>
  asPromise((await table("readwrite")).put(conversation));
export const remove = async (id) => asPromise((await table("readwrite")).delete(id));
