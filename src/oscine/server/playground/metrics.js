// Opens the server's metrics. They are requested here, because a link cannot send the API key.

import { call } from "./api.js";

export function linkMetrics({ failed }) {
  document.getElementById("metrics").addEventListener("click", async () => {
    try {
      const page = await (await call("metrics")).blob();
      open(URL.createObjectURL(page));
    } catch (error) {
      failed(error);
    }
  });
}
