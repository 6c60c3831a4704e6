// Images that people add to a message, small enough to be kept and sent again with each turn.

const TYPES = ["image/jpeg", "image/png", "image/webp", "image/gif"];
const LARGEST_SIDE = 2048; // in pixels; no model looks closer
const LARGEST_TEXT = 2 * 1024 * 1024; // characters of an address
const ADDRESS = /^data:image\/(?:jpeg|png|webp|gif);base64,[A-Za-z0-9+/]+=*$/;

export const MOST_IMAGES = 8; // of a message

/** The images among the files of an event, or null if it brings no file. */
export const filesOf = (transfer) => (transfer?.files?.length ? [...transfer.files] : null);

/** Whether a text is an address that `asAddress` could have made. */
export const isAddress = (text) =>
  typeof text === "string" && text.length <= LARGEST_TEXT && ADDRESS.test(text);

/** Returns a file as a data: address; a large image is made smaller first. */
export async function asAddress(file) {
  if (!TYPES.includes(file.type)) {
    throw new Error(`${file.name || "The file"} is no JPEG, PNG, WebP or GIF image.`);
  }
  let picture;
  try {
    picture = await createImageBitmap(file);
  } catch {
    throw new Error(`${file.name || "The image"} is damaged: it cannot be shown.`);
  }
  const scale = LARGEST_SIDE / Math.max(picture.width, picture.height);
  const asIs = scale >= 1 && file.size < 0.7 * LARGEST_TEXT;
  const address = await read(asIs ? file : await redrawn(picture, Math.min(scale, 1)));
  picture.close();
  if (!isAddress(address)) throw new Error(`${file.name || "The image"} is too large.`);
  return address;
}

async function redrawn(picture, scale) {
  const width = Math.max(1, Math.round(scale * picture.width));
  const height = Math.max(1, Math.round(scale * picture.height));
  const canvas = new OffscreenCanvas(width, height);
  const paper = canvas.getContext("2d");
  paper.fillStyle = "white"; // as the server shows what is transparent
  paper.fillRect(0, 0, width, height);
  paper.drawImage(picture, 0, 0, width, height);
  return canvas.convertToBlob({ type: "image/jpeg", quality: 0.9 });
}

const read = (blob) =>
  new Promise((resolve, reject) => {
    const reader = new FileReader();
    reader.onload = () => resolve(reader.result);
    reader.onerror = () => reject(reader.error);
    reader.readAsDataURL(blob);
  });
