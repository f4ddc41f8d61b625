// Images of a prompt: dropped, pasted or chosen, kept as data URLs.

import { element } from "./view.js";

const MAX_BYTES = 2_500_000; // of all images of a prompt; a request has at most 4 MB, and base64 adds a third

const read = (file) =>
  new Promise((resolve, reject) => {
    const reader = new FileReader();
    reader.onload = () => resolve(reader.result);
    reader.onerror = () => reject(new Error(`${file.name} cannot be read`));
    reader.readAsDataURL(file);
  });

/** The images that the next prompt sends. */
export class PendingImages {
  constructor(list, onChange) {
    this.list = list;
    this.onChange = onChange;
    this.images = []; // {name, url, size}
  }

  /** Add image files. Throws if there are none, or if they are too large. */
  async add(files) {
    const found = [...files].filter((file) => file.type.startsWith("image/"));
    if (found.length === 0) throw new Error("only images can be added: PNG, JPEG, WebP or GIF");
    const size = [...this.images, ...found].reduce((sum, image) => sum + image.size, 0);
    if (size > MAX_BYTES) throw new Error(`the images have ${(size / 1e6).toFixed(1)} MB; the limit is ${MAX_BYTES / 1e6} MB`);
    for (const file of found) this.images.push({ name: file.name, size: file.size, url: await read(file) });
    this.render();
  }

  /** Return the data URLs and remove the images. */
  take() {
    const urls = this.images.map((image) => image.url);
    this.images = [];
    this.render();
    return urls;
  }

  render() {
    const remove = (image) => () => {
      this.images = this.images.filter((other) => other !== image);
      this.render();
    };
    const items = this.images.map((image) =>
      element("li", {}, element("img", { src: image.url, alt: image.name }),
        element("button", { type: "button", "aria-label": `Remove ${image.name}`, onclick: remove(image) }, "×")),
    );
    this.list.replaceChildren(...items);
    this.onChange();
  }
}

/** Take images that are dropped on a form, pasted into its prompt, or chosen. `show` receives errors. */
export function acceptImages(pending, form, show) {
  const add = async (files) => {
    try {
      await pending.add(files);
      show("");
    } catch (error) {
      show(error.message);
    }
  };
  const input = form.querySelector("input[type=file]");
  form.querySelector("#add-images").addEventListener("click", () => input.click());
  input.addEventListener("change", async () => {
    await add(input.files);
    input.value = ""; // the same file can be chosen again
  });
  form.querySelector("textarea").addEventListener("paste", (event) => {
    if (event.clipboardData.files.length === 0) return;
    event.preventDefault();
    add(event.clipboardData.files);
  });
  for (const type of ["dragover", "dragleave", "drop"]) {
    form.addEventListener(type, (event) => {
      event.preventDefault();
      form.classList.toggle("drop", type === "dragover");
      if (type === "drop") add(event.dataTransfer.files);
    });
  }
}
