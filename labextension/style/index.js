import './base.css';
import './history.css';
import './plots.css';
