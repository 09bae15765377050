"""Records, metrics, statistics and pictures of what a run did; knows neither tokens nor verl."""
