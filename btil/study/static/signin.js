// Signs a researcher in: the key is sent once, in the body of a request.

const form = document.querySelector("form");
const notice = document.querySelector(".notice");

async function signIn(key) {
  let answer;
  try {
    answer = await fetch("signin", { method: "POST", body: JSON.stringify({ key }) });
  } catch {
    notice.textContent = "The server does not answer.";
    return;
  }
  if (answer.ok) location.reload();
  else if (answer.status === 429) notice.textContent = "Too many wrong keys; wait a minute.";
  else notice.textContent = "This is not the key.";
}

form.onsubmit = (event) => {
  event.preventDefault();
  signIn(form.elements.key.value.trim());
};

// What stands behind the # is never sent by a browser; it does not stay in the history either.
const given = new URLSearchParams(location.hash.slice(1)).get("key");
if (given !== null) {
  history.replaceState(null, "", location.pathname + location.search);
  signIn(given);
}
