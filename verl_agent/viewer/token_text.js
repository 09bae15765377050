// Tokens as spans. Texts are set with textContent, so nothing that a model wrote becomes markup.
export default {
  template: '<div><div ref="text" class="token-text"></div><div ref="tip" class="token-tip" hidden></div></div>',
  props: { texts: Array, turns: Array, labels: Array, values: Array, alternatives: Array, levels: Array },
  mounted() {
    const spans = this.texts.map((text, index) => {
      const span = document.createElement("span");
      span.textContent = text.replaceAll("\n", "\u23ce\n");
      span.dataset.index = index;
      if (this.turns[index] >= 0 && this.turns[index] !== this.turns[index - 1]) {
        span.id = `tokens-turn-${this.turns[index] + 1}`;
        span.classList.add("token-first");
      }
      return span;
    });
    this.$refs.text.replaceChildren(...spans);
    this.$refs.text.addEventListener("mouseover", (event) => this.show(event));
    this.$refs.text.addEventListener("mouseleave", () => (this.$refs.tip.hidden = true));
    this.paint(this.levels);
  },
  methods: {
    paint(levels) {
      levels.forEach((level, index) => {
        const span = this.$refs.text.children[index];
        const color = level < 0 ? "213, 94, 0" : "0, 114, 178";
        span.style.backgroundColor = level === null ? "" : `rgba(${color}, ${(0.65 * Math.abs(level)).toFixed(3)})`;
      });
    },
    show(event) {
      const index = event.target.dataset.index;
      if (index === undefined) return;
      const tip = this.$refs.tip;
      const lines = this.labels
        .map((label, line) => [label, this.values[line][index]])
        .filter(([, value]) => value !== null)
        .map(([label, value]) => `${label}: ${value}`);
      const top = this.alternatives[index];
      if (top) lines.push("most likely:", ...top.map(([text, share]) => `  ${share}  ${JSON.stringify(text)}`));
      tip.textContent = [JSON.stringify(this.texts[index]), ...lines].join("\n");
      tip.hidden = false;
      const box = event.target.getBoundingClientRect();
      const below = box.bottom + tip.offsetHeight + 8 < window.innerHeight;
      tip.style.left = `${Math.max(4, Math.min(box.left, window.innerWidth - tip.offsetWidth - 8))}px`;
      tip.style.top = `${below ? box.bottom + 4 : Math.max(4, box.top - tip.offsetHeight - 4)}px`;
    },
  },
};
