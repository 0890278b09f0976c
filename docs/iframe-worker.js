// Browsers start no workers for a page opened from a folder: there, a hidden frame is the worker,
// and the search works without a server.
if (location.protocol === "file:") {
  window.Worker = class extends EventTarget {
    constructor(url) {
      super();
      this.waiting = [];
      this.frame = document.createElement("iframe");
      this.frame.hidden = true;
      document.documentElement.append(this.frame);
      const inside = this.frame.contentWindow;
      inside.postMessage = (data) => this.dispatchEvent(new MessageEvent("message", { data }));
      inside.importScripts = (...urls) =>
        Promise.all(urls.map((each) => this.load(new URL(each, url)).catch(() => {})));
      this.load(url).then(() => {
        this.loaded = true;
        this.waiting.forEach((data) => this.postMessage(data));
      });
    }
    load(url) {
      const script = this.frame.contentDocument.createElement("script");
      script.src = url;
      this.frame.contentDocument.documentElement.append(script);
      return new Promise((resolve, reject) => {
        script.onload = resolve;
        script.onerror = reject;
      });
    }
    postMessage(data) {
      if (this.loaded) {
        this.frame.contentWindow.dispatchEvent(new MessageEvent("message", { data }));
      } else {
        this.waiting.push(data);
      }
    }
  };
}
