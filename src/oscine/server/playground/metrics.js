// The link to the server's metrics. They are requested here, because a plain link cannot send the API key.

import { call } from "./api.js";

export function linkMetrics({ failed }) {
  document.getElementById("metrics").addEventListener("click", async (event) => {
    event.preventDefault();
    try {
      const page = await (await call("metrics")).blob();
      open(URL.createObjectURL(page));
    } catch (error) {
      failed(error);
    }
  });
}
